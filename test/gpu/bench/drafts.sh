#!/bin/bash
# usage: drafts.sh BIN DIR 8b|27b [TOKENS [short]]: kinds of drafters of one target, at real shapes, with random weights and stated acceptance.
# What each draft takes beside DFlash's; then tokens a second of plain, of chains and of trees at the kind's published tau, with
# what a tree's tau has to be. Models are made in DIR where they are not there (make_models.sh). Expected to take 80 s of an H200 for 8B. short: of
# each kind the longest chain and a tree of 15, and no draft steps.
#
# Acceptance is by slot and rank, the same for all slots: p is what gives the published tau in a chain of the published length, and of what
# the first choice misses the second has 0.44, the third 0.14, the fourth 0.08 (data/'s pair, docs/speed/trees.md). A slot does not know
# which path it is on, so trees look better than they are: behind a second choice a drafter is right less often.
set -eu
bin=$1 dir=$2 target=$3
n=${4:-$([ "$target" = 8b ] && echo 768 || echo 384)} short=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# NAME | file | published tau | proposals it was published with | flags of all its runs | chains, rows | trees, proposals
case $target in
    8b) kinds='DFlash|8b-draft-q8_0|6.34|15||8 16|7 15 31 63
DFlash2|8b-draft2-q8_0|7.25|15||8 16|15 31 63
DSpark|8b-dspark-q8_0|7.38|15||8|15 31 63
Domino|8b-domino-q8_0|7.23|15||8 16|15 31' ;;
    27b) kinds='DFlash|27b-draft-q8_0|7.7|15||8 16|15 31
DFlash2|27b-draft2-q8_0|4.80|7||8|15 31
MTP|27b-mtp-q8_0|4.38|7|--block 4|4|7 15
MTP of 7|27b-mtp-q8_0|4.38|7|--block 8|8|15' ;;
    *) echo "drafts.sh: $target: expected 8b or 27b" >&2; exit 2 ;;
esac
model=$dir/$target-q4_k_m.gguf
cut -d'|' -f2 <<<"$kinds" | sort -u | xargs -P 8 -n 1 "$here/make_models.sh" "$bin" "$dir"
"$here/make_models.sh" "$bin" "$dir" "$target-q4_k_m"
# 200 ids of 1,000 to 89,999, the same every time
awk 'BEGIN { srand(7); for (i = 0; i < 200; i++) { x = 1000 + int(rand() * 89000)
    printf "\\x%02x\\x%02x\\x%02x\\x00", x % 256, int(x / 256) % 256, int(x / 65536) } }' >"$out/ids"
printf "$(cat "$out/ids")" >"$out/p.tok"

number() { # KEY OBJECT FILE: the first number of that key behind the object's name
    sed "s/.*\"$2\"://" "$3" | grep -o "\"$1\":[-0-9.e]*" | head -1 | cut -d: -f2
}
rates() { # TAU PROPOSALS: p/second/third/fourth
    awk -v tau="$1" -v n="$2" 'BEGIN { a = 0; b = 1
        for (k = 0; k < 60; k++) { p = (a + b) / 2; s = 0; q = 1; for (i = 0; i <= n; i++) { s += q; q *= p } if (s < tau) a = p; else b = p }
        m = 1 - p; printf "%.4f/%.4f/%.4f/%.4f", p, .44 * m, .14 * m, .08 * m }'
}

if [ -z "$short" ]; then
    echo "| drafter | proposals | draft, ms | of DFlash's |"
    echo "| --- | --- | --- | --- |"
    first=
    while IFS='|' read -r name file _ _ flags _; do
        "$bin/dflash-bench" rows -q -m "$model" -d "$dir/$file.gguf" --device cuda --rows 1 --prompts '' --rounds 9 $(sed 's/--block [0-9]*//' <<<"$flags") |
            tail -1 >"$out/rows"
        ms=$(awk -v s="$(number median seconds "$out/rows")" 'BEGIN { printf "%.3f", s * 1e3 }') first=${first:-$ms}
        echo "| $name | $(($(number block drafter "$out/rows") - 1)) | $ms | $(awk -v a="$ms" -v b="$first" 'BEGIN { printf "%.2f", a / b }') |"
    done < <(grep -v "^MTP of" <<<"$kinds")
    echo
fi
echo "| drafter, chance of a first choice | plan | rows | tokens a cycle | ms a cycle | tokens/s | of plain | tau over the chain's | tau that pays |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
while IFS='|' read -r name file tau length flags chains trees; do
    p=$(rates "$tau" "$length")
    : >"$out/lines"
    [ -z "$short" ] || chains=${chains##* } trees=15
    for plan in $(printf 'width:%s ' $chains) $(printf 'tree:%s ' $trees); do
        "$bin/dflash-bench" run -q -m "$model" -d "$dir/$file.gguf" --device cuda --ignore-eos -n "$n" --runs 1 --warmup 1 $flags \
            "--${plan%:*}" "${plan#*:}" --accept-rates "$p" "$out/p.tok" >"$out/line" 2>"$out/err" || { cat "$out/err" >&2; continue; }
        echo "$plan $(number tau drafted "$out/line") $(number median drafted "$out/line") $(number median plain "$out/line")" >>"$out/lines"
    done
    # a chain's best: what a tree is held against
    awk -v name="$name, ${p%%/*}" '{ split($1, k, ":"); plan[NR] = k[1] == "tree" ? "tree of " k[2] : "chain of " k[2] - 1
            rows[NR] = k[1] == "tree" ? k[2] + 1 : k[2]; tau[NR] = $2; rate[NR] = $3; plain[NR] = $4; ms[NR] = 1e3 * $2 / $3
            if (k[1] != "tree" && (!best || $3 > rate[best])) best = NR }
        END { for (i = 1; i <= NR; i++) printf "| %s | %s | %d | %.2f | %.3f | %.0f | %.2f | %.2f | %.2f |\n", name, plan[i], rows[i], tau[i], ms[i],
            rate[i], rate[i] / plain[i], tau[i] / tau[best], ms[i] / ms[best] }' "$out/lines"
done <<<"$kinds"
