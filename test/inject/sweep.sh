#!/bin/bash
# sweep.sh - every program with one call made to fail: the nth allocation, map, thread, open, read, write, fsync, close,
# rename, link (inject.c), for POINTS of them spread over each kind, for those that stand for every path of calls that leads
# to one (paths: its first, its last, one between), or for every n (all: an hour or so; the program makes copies of itself for the
# calls before its first output and its first thread, and copies that ended alike are looked at once; SWEEP_FORK=0: it does not).
#
# usage: test/inject/sweep.sh BIN_DIR DATA_DIR INJECT.so POINTS|paths|all [JOB...]
# Each must end in one of two ways: status 4 with a message that names the cause, no file at its outputs nor beside them, and
# those that were there before as they were; or, where the program can do without what failed, status 0 and the same bytes as
# without. Never another status, a signal, or a report of a sanitizer. Then SIGTERM before each open, read, write, fsync,
# close, rename and link: the program ends by it, and its outputs are all there, whole, or none is. Then once with all reads
# and writes in small pieces and interrupted: status 0, same bytes.
set -u
here=$(cd "$(dirname "$0")" && pwd) src=${0%/*}/../..
src=$(cd "$src" && pwd) bin=$(cd "$1" && pwd) data=$(cd "$2" && pwd) inject=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
points=$4 paths= whole= forks=0
case $points in paths) paths=1 whole=paths points=all ;; all) whole=all forks=${SWEEP_FORK:-1} ;; esac
shift 4
export PATH="$bin:$PATH" LC_ALL=C OMP_NUM_THREADS=2 ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shopt -s dotglob nullglob
T=$data/target-q8_0.gguf D=$data/drafter-q8_0.gguf D2=$data/drafter-dflash2-bf16.gguf hf=$src/data/pair
begun=$SECONDS runs=0 failed=0

# Inputs, made once.
cd "$work" || exit 4
mkdir in
printf 'Names of things, and what they cost: 1, 2, 3.\n' >in/text
printf '{"role":"system","content":"Be brief."}\n{"role":"user","content":"Hi"}\n' >in/chat
dflash-tokenize -m "$T" <in/text >in/tokens
dflash-prefill -q -m "$T" -d "$D" -o in/state <in/tokens
dflash-convert -q "$src/test/family/gemma4moe.json" --random 1 -o in/moe.gguf 2>/dev/null
dflash-convert -q "$src/test/family/qwen35moe.json" --random 1 --mtp keep -o in/mtp.gguf 2>/dev/null
dflash-bench run -q -m "$T" -d "$D" -n 4 --runs 1 --warmup 0 --ignore-eos in/tokens >in/cell.jsonl
mkdir qwen
sed 's/<|im"/<\/think>"/g; s/<think>\\n\\n/<tool_call>/' "$src/test/data/tok_qwen2.json" >qwen/tokenizer.json
echo '{"architectures":["Qwen3ForCausalLM"],"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,
"num_key_value_heads":1,"head_dim":32,"hidden_act":"silu","vocab_size":700,"rms_norm_eps":1e-6,"rope_theta":1e6,
"tie_word_embeddings":true,"max_position_embeddings":512}' >qwen/config.json
dflash-convert -q qwen --random 1 -o in/qwen.gguf
printf '[{"name":"f","parameters":{"x":[1.5,true,null]}}]\n' >in/tools
{
    cat in/chat
    printf '{"role":"assistant","tool_calls":[{"name":"f","arguments":{"x":[2],"y":"z"}}]}\n{"role":"tool","content":"3"}\n'
} >in/calls
dflash-tokenize -m in/qwen.gguf --chat --chat-template qwen3 <in/chat | dflash-prefill -q -m in/qwen.gguf -o in/chat-state
dflash-prefill -q -m "$T" --imatrix in/imatrix <in/tokens
{ # the binary form of one
    printf '\1\0\0\0\25\0\0\0blk.0.ffn_down.weight\1\0\0\0\0\3\0\0'
    for k in {1..256}; do printf '\0\0\200\77\0\0\0\100\0\0\200\101'; done
    printf '\1\0\0\0\3\0\0\0two'
} >in/imatrix.dat
# files that are there before a job runs: pre-JOB
mkdir in/pre-none in/pre-prefill-imatrix in/pre-prefill-force in/pre-generate-force in/pre-generate-save in/pre-prefill-state
cp in/imatrix in/pre-prefill-imatrix/o
cp in/state in/pre-generate-save/o2
cp in/state in/pre-prefill-state/o
for f in o o2 o3; do echo "old $f" | tee in/pre-prefill-force/$f >in/pre-generate-force/$f; done
printf '\1\0\0\0\2\0\0\0' >in/ids
printf '\5\0\0\0\6\0\0\0' >in/a
printf '\5\0\0\0\7\0\0\0' >in/b
i=$work/in

# On the CPU by name: where the CUDA library is, a program that asks it for a device runs the library's own calls too, and what it does where
# they fail is not ours.
# NAME | which of its outputs are compared (- none: they hold times) | stdin | command; outputs are o* in its folder
jobs="
convert-target   | * | text   | dflash-convert $hf/target -o o --threads 2
convert-q4_k_m   | * | text   | dflash-convert $hf/drafter --target $hf/target --type q4_k_m -o o --threads 2
convert-random   | * | text   | dflash-convert $src/test/family/qwen35moe.json --random 3 --type q8_0 -o o --threads 2
convert-mtp      | * | text   | dflash-convert $src/test/family/qwen35moe.json --random 3 --type q8_0 --mtp only -o o --threads 2
convert-gguf     | * | text   | dflash-convert $D --target $T -o o --threads 2
convert-dialect  | * | text   | dflash-convert $D --target $T --dialect ik -o o --threads 2
quantize-imatrix | * | text   | dflash-quantize $T --type q4_k_m --imatrix $i/imatrix -o o --threads 2
quantize-dat     | * | text   | dflash-quantize $T --type q2_k --imatrix $i/imatrix.dat -o o --threads 2
quantize         | o | text   | dflash-quantize $data/drafter-bf16.gguf --type q4_k_m --tensor-type blk.0.*=q6_k --json -o o --threads 2
inspect          | * | text   | dflash-inspect --tensors $T -o o
inspect-json     | * | text   | dflash-inspect --tensors --json $T -o o
inspect-st       | * | text   | dflash-inspect --json $hf/target/model.safetensors -o o
inspect-check    | * | text   | dflash-inspect --check $D -o o --threads 2
inspect-pair     | * | text   | dflash-inspect --pair --json $T $D -o o
inspect-diff     | * | text   | dflash-inspect --diff $hf/drafter $D -o o --threads 2
tokenize         | * | text   | dflash-tokenize -m $T -o o
tokenize-spm     | * | text   | dflash-tokenize -m $src/test/data/tok_spm.gguf -o o
decode           | * | tokens | dflash-tokenize -m $T --decode -o o
chat             | * | chat   | dflash-tokenize -m $i/qwen.gguf --chat --chat-template qwen3 -o o
chat-tools       | * | calls  | dflash-tokenize -m $i/qwen.gguf --chat --chat-template qwen3.5 --chat-tools $i/tools -o o
chat-continue    | * | text   | dflash-tokenize -m $i/qwen.gguf --chat --chat-template qwen3 --chat-text --continue $i/chat-state -o o
prefill          | * | tokens | dflash-prefill -m $T -d $D -o o --logits o2 --hidden o3 --threads 2 --device cpu
prefill-hidden   | * | tokens | dflash-prefill -m $T --chunk 4 --hidden o2 -o o --threads 2 --device cpu
prefill-imatrix  | * | tokens | dflash-prefill -m $T --imatrix o --dataset more --threads 2 --device cpu
prefill-force    | * | tokens | dflash-prefill -m $T -d $D --force -o o --logits o2 --hidden o3 --threads 2 --device cpu
prefill-moe      | * | ids    | dflash-prefill -m $i/moe.gguf -o o --threads 2 --device cpu
prefill-nll      | * | tokens | dflash-prefill -m $T --nll --threads 2 --device cpu
prefill-kl       | * | tokens | dflash-prefill -m $T --nll --ctx 4 --kl-save o --json --threads 2 --device cpu
generate         | * | tokens | dflash-generate -m $T -d $D -n 12 --ignore-eos -o o --width 8 --draft-trace o2 --draft-logits o3 --threads 2 --device cpu
generate-mtp     | * | ids    | dflash-generate -m $i/mtp.gguf -d target -n 6 --ignore-eos -o o --width 4 --draft-trace o2 --draft-logits o3 --threads 2 --device cpu
prefill-mtp      | * | ids    | dflash-prefill -m $i/mtp.gguf -d target -o o --threads 2 --device cpu
generate-force   | * | tokens | dflash-generate -m $T -d $D -n 6 --ignore-eos --force -o o --width 8 --draft-trace o2 --draft-logits o3 --threads 2 --device cpu
generate-stats   | - | tokens | dflash-generate -m $T -d $D -n 4 --ignore-eos --temp 0.7 --repeat-penalty 1.1 -o o --stats o2 --threads 2 --device cpu
generate-dflash2 | * | tokens | dflash-generate -m $T -d $D2 -n 6 --ignore-eos --temp 0.7 -o o --width 8 --draft-trace o2 --draft-logits o3 --threads 2 --device cpu
generate-state   | * | tokens | dflash-generate -m $T -d $D --state $i/state --append -n 6 --ignore-eos --lookup on --lookup-file $i/tokens -o o --threads 2 --device cpu
generate-save    | * | tokens | dflash-generate -m $T -d $D --state $i/state --append -n 6 --ignore-eos -o o --save-state o2 --force --threads 2 --device cpu
prefill-state    | * | tokens | dflash-prefill -m $T -d $D --state $i/state -o o --force --threads 2 --device cpu
generate-pipe    | * | tokens | dflash-generate -m $T -n 6 --ignore-eos --threads 2 --device cpu
bench-run        | - | tokens | dflash-bench run -m $T -d $D -n 3 --runs 1 --warmup 0 --ignore-eos $i/tokens -o o --threads 2 --device cpu
bench-rows       | - | tokens | dflash-bench rows -m $T -d $D --rows 1,2 --prompts 4 --context 8 --rounds 1 -o o --threads 2 --device cpu
bench-compare    | * | text   | dflash-bench compare --json $i/a $i/b -m $T --prompt $i/tokens -o o --threads 2
bench-report     | * | text   | dflash-bench report $i/cell.jsonl -o o
bench-report-html | * | text  | dflash-bench report $i/cell.jsonl --baseline $i/cell.jsonl --html o2 -o o
bench-matrix     | * | text   | dflash-bench matrix --target $hf/target --drafter $hf/drafter $hf/../prompts/python-1-short.txt -o o
"

complain() { # WHAT: the job, the point, and what the program said
    failed=$((failed + 1))
    bad=1
    echo "    $name $point: $1; status $status: $(head -c 600 err | tr '\n' '~')"
}

# The files here are those that were there before, and as they were.
as_before() {
    local f
    for f in *; do
        case $f in out | err) continue ;; esac
        [ -f "$pre/$f" ] || complain "left behind: $f"
    done
    for f in "$pre"/*; do cmp -s "$f" "${f##*/}" || complain "not as it was before: ${f##*/}"; done
}

# The outputs are those of a run without: by bytes, or (they hold times) by their names.
as_meant() {
    local f
    if [ "$compare" = - ]; then
        [ "$(cd ../ref && ls -A)" = "$(ls -A)" ] || complain "status $status, with other files: $(ls -A | tr '\n' ' ')"
        return
    fi
    for f in ../ref/$compare; do
        case ${f##*/} in err) continue ;; out) [ "$status" = "$ok" ] || continue ;; esac
        cmp -s "$f" "${f##*/}" || complain "status $status, but ${f##*/} differs"
    done
    for f in *; do [ -e "../ref/$f" ] || complain "left behind: $f"; done
}

# Was this run, in the current folder, one of the good ways?
judge() {
    if [ "$status" -gt 0 ] && [[ $(<err) == *"AddressSanitizer: CHECK failed: sanitizer_"* ]]; then
        : # the sanitizer's own allocation, as it starts a thread
    elif [ "$status" = "$ok" ]; then
        as_meant
    elif [ "$status" = 143 ] && [ "$how" = RAISE ]; then
        local new=0 f
        for f in *; do case $f in out | err) ;; *) cmp -s "$pre/$f" "$f" || new=1 ;; esac; done
        if [ $new = 1 ]; then as_meant; else as_before; fi
    elif [ "$status" = 4 ]; then
        as_before
        case $kind:$(<err) in
        alloc:*[Oo]"ut of memory"* | alloc:*"no memory for"* | alloc:*"failed to allocate"* | alloc:*"Cannot allocate memory"*) ;;
        mmap:*"annot allocate memory"* | mmap:*"out of memory"*) ;;
        alloc:*"threads could not be started"* | alloc:*"Thread creation failed"*) ;; # the C library had no memory for one
        thread:*[Tt]hread* | open:*"Too many open files"* | read:*"Input/output error"*) ;;
        write:*"No space left on device"* | fsync:*"Input/output error"* | close:*"Input/output error"* | rename:*"Input/output error"*) ;;
        *) complain "the message does not say why" ;;
        esac
    else
        complain "status $status"
    fi
}

run_once() { # VARIABLES...: the job with these, in a new folder
    rm -rf now
    cp -r "$pre" now
    cd now || exit 4
    set -f
    # in a shell of its own, which tells err, not us, of a program that was terminated
    (env "$@" LD_PRELOAD="$inject" $command <"$i/$stdin" || exit $?) >out 2>err
    status=$?
    set +f
    runs=$((runs + 1))
}

while IFS='|' read -r name compare stdin command; do
    name=${name// /} compare=${compare// /} stdin=${stdin// /}
    [ -n "$name" ] || continue
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    bad=0 from=$runs
    set -f
    rm -rf "$work/job"
    mkdir "$work/job"
    pre=$i/pre-$name
    [ -d "$pre" ] || pre=$i/pre-none
    cp -r "$pre" "$work/job/ref"
    cd "$work/job/ref" || exit 4
    $command <"$i/$stdin" >out 2>err
    ok=$?
    cd ..
    kind=count point=without status=$ok how=FAIL
    set +f
    declare -A upto=()
    if [ "$forks" = 1 ] && [ "$pre" = "$i/pre-none" ]; then
        mkdir copies
        run_once "INJECT_FORK=$work/job/copies"
        [ "$status" = "$ok" ] || complain "status differs (expected $ok)"
        cd ..
        while read -r how kind n status many at; do
            if [ "$how" = upto ]; then
                upto[$kind]=$n
                continue
            fi
            point="$how:$kind:$n (and $((many - 1)) that ended alike)"
            mv "copies/$at" now-copy
            cd now-copy || exit 4
            runs=$((runs + many))
            judge
            cd ..
            rm -rf now-copy
        done <copies/made
        rm -rf copies
        kind=count point=without status=$ok how=FAIL
    fi
    run_once "INJECT_COUNT=$work/job/count" ${paths:+INJECT_PATHS=1}
    [ "$status" = "$ok" ] && [ "$ok" -lt 2 ] || complain "status differs (expected $ok)"
    [ -s ../count ] || complain "no calls were counted"
    cd ..
    for how in FAIL RAISE; do
        while read -r kind n stand; do
            case $how:$kind in RAISE:alloc | RAISE:mmap | RAISE:thread) continue ;; esac
            # shellcheck disable=SC2086
            if [ -n "$paths" ]; then list=($stand); else mapfile -t list < <(seq $((${upto[$kind]:-0} + 1)) "$n"); fi
            # bench measures the memory's speed, most of a second a run
            most=$points
            case $name:${whole:-few} in bench-ro*:few | bench-run:few) most=1 ;; bench-ro*:paths | bench-run:paths) most=25 ;; esac
            step=1 n=${#list[@]}
            [ "$most" = all ] || step=$(((n + most - 1) / most))
            [ "$step" -gt 0 ] || continue
            # with a stride, a start that differs from job to job: all of them together see more
            for ((k = (${#name} * 7 + from) % step; k < n; k += step)); do
                point=$how:$kind:${list[k]}
                run_once "INJECT_$how=$kind:${list[k]}"
                judge
                cd ..
            done
        done <count
    done
    for kind in short; do
        point=short how=FAIL
        run_once INJECT_SHORT=1
        [ "$status" = "$ok" ] || complain "status differs (expected $ok)"
        [ "$status" != "$ok" ] || judge
        cd ..
    done
    [ "$bad" = 1 ] && echo "FAIL inject/$name ($((runs - from)) runs)" || echo "ok   inject/$name ($((runs - from)) runs)"
done <<<"$jobs"
echo "inject: $runs runs in $((SECONDS - begun)) s, $failed bad"
[ "$failed" = 0 ]
