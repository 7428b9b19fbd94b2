#!/bin/bash
# long.sh - every fuzz target to a number of executions, all at once: what docs/fuzz-log.md records.
#
# usage: test/fuzz/long.sh FUZZ_DIR OUT [EXECUTIONS [SECONDS [TARGET...]]]
# FUZZ_DIR holds fuzz_NAME (make fuzz-build) and, beside test/fuzz, the corpora; OUT is made. A target gets a share of the
# processors; its processes share one corpus, begun with the committed one (and with OUT/corpus of an earlier run, which is
# continued: executions add up over the runs in OUT/NAME.total). Coverage is counted at a tenth, half, four fifths and all of
# EXECUTIONS (default 10000000), by one process that reads the corpus as it then is; a plateau is no new edge in the last fifth. After SECONDS (default 150) no new work is begun.
# OUT: NAME.tsv (executions, edges, features, corpus files), find-NAME-* (must not exist), corpus/NAME, and
# of it all/NAME (the inputs that reach every feature) and min/NAME (every edge).
set -u
goal=${3:-10000000} seconds=${4:-150}
mkdir -p "$2" && bin=$(cd "$1" && pwd) && out=$(cd "$2" && pwd) && here=$(cd "$(dirname "$0")" && pwd) || exit 4
shift $(($# < 4 ? $# : 4))
names=("$@")
# Share of the processors, and bytes an input at most.
share=(tokenize=15=192 tokenizer_json=16=8192 config_json=10=2048 desc=6=4096 chat=4=512 gguf=3=2048 imatrix=2=2048 safetensors=3=2048
    session=24=16384 snapshot=3=1024 state=3=1024 tokens=1=512)
[ ${#names[@]} -gt 0 ] || names=("${share[@]%%=*}")
export ASAN_OPTIONS=quarantine_size_mb=16:${ASAN_OPTIONS:-} LC_ALL=C
begun=$SECONDS
fix= # no randomised addresses: old sanitizers and new kernels disagree about them
setarch -R true 2>/dev/null && fix="setarch -R"

coverage() { # NAME FLAGS...: "edges features files"
    local t=$1
    shift
    $fix "$bin/fuzz_$t" -runs=0 "$@" "$out/corpus/$t" 2>&1 | sed -n 's/.*INITED cov: \([0-9]*\) ft: \([0-9]*\) .*/\1\t\2/p'
}

merge() { # NAME FOLDER MAX_LEN FLAGS...: the smallest inputs of the corpus that reach all that it reaches
    local t=$1 to=$out/$2/$1 len=$3
    shift 3
    mkdir -p "$to"
    rm -f "$to"/*
    timeout 120 $fix "$bin/fuzz_$t" -merge=1 -max_len="$len" "$@" -artifact_prefix="$out/find-$t-" "$to" "$out/corpus/$t" \
        >"$out/log/$t.merge" 2>&1
}

fuzz_target() { # NAME PROCESSES MAX_LEN
    local t=$1 n=$2 flags=(-max_len="$3" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$out/find-$1-")
    local have left each i part
    [ -f "$here/$t.dict" ] && flags+=(-dict="$here/$t.dict")
    mkdir -p "$out/corpus/$t" "$out/log"
    for i in "$here/corpus/$t"/*; do [ -e "$out/corpus/$t/${i##*/}" ] || cp "$i" "$out/corpus/$t"; done
    have=$(cat "$out/$t.total" 2>/dev/null || echo 0)
    for part in $((goal / 10)) $((goal / 2)) $((goal / 5 * 4)) "$goal"; do
        [ "$have" -lt "$part" ] || continue
        left=$((seconds - (SECONDS - begun)))
        [ "$left" -gt 5 ] || break
        each=$(((part - have + n - 1) / n))
        rm -f "$out/log/$t".*
        for ((i = 0; i < n; i++)); do
            $fix "$bin/fuzz_$t" -runs=$each -max_total_time=$left -seed=$((have % 1000000 + i + 1)) -reload=1 "${flags[@]}" \
                "$out/corpus/$t" >"$out/log/$t.$i" 2>&1 &
        done
        wait
        have=$((have + $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/log/$t".* | awk '{s += $1} END {print s + 0}')))
        echo "$have" >"$out/$t.total"
        printf '%s\t%s\t%s\t%s\n' "$have" "$(coverage "$t" -max_len="$3")" "$(ls "$out/corpus/$t" | wc -l)" $((SECONDS - begun)) >>"$out/$t.tsv"
        grep -lE 'ERROR: |SUMMARY: ' "$out/log/$t".* >>"$out/findings" 2>/dev/null && break
    done
    merge "$t" all "$3"                   # what the next run begins with
    merge "$t" min "$3" -use_counters=0   # a file an edge: what the repository keeps
    echo "$t: $(tail -n 1 "$out/$t.tsv" | tr '\t' ' ') (executions, edges, features, files, seconds), $(tail -n 2 "$out/$t.tsv" | awk '{ e[NR] = $2 } END { print NR == 2 && e[1] == e[2] ? "plateau" : "no plateau" }'), merged to $(ls "$out/all/$t" | wc -l) and $(ls "$out/min/$t" | wc -l) files"
}

cores=$(nproc) all=0
for s in "${share[@]}"; do
    IFS== read -r name parts len <<<"$s"
    [[ " ${names[*]} " != *" $name "* ]] || all=$((all + parts))
done
for s in "${share[@]}"; do
    IFS== read -r name parts len <<<"$s"
    [[ " ${names[*]} " == *" $name "* ]] || continue
    n=$((parts * cores / all))
    fuzz_target "$name" $((n < 1 ? 1 : n)) "$len" &
done
wait
for f in "$out"/find-*; do [ ! -e "$f" ] || echo "FIND $f"; done
echo "all in $((SECONDS - begun)) s"
