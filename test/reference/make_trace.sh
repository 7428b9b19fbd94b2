#!/bin/bash
# make_trace.sh - write test/reference/PAIR_trace.json: the target's greedy ids and every cycle of drafting on a pair of data/.
#
# usage: make build/test/oracle build/PAIR/target-bf16.gguf && test/reference/make_trace.sh PAIR      (pair or pair-hybrid)
# Prompts are held-out texts of data/prompts, cut to lengths that end before, at and beyond the drafter's window of 256 (250
# crosses it while generating). Float64, caches not rounded, stop ids ignored; a minute or two on two cores. Make it again when the pair changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
pair=$1 bin=build/bin work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cut_prompt() { # NAME IDS FILE...
    local name=$1 n=$2
    shift 2
    cat "$@" | $bin/dflash-tokenize -m "build/$pair/target-bf16.gguf" >"$work/all"
    head -c $((4 * n)) "$work/all" >"$work/$name"
    [ "$(stat -c %s "$work/$name")" = $((4 * n)) ] || { echo "make_trace.sh: $name is shorter than $n ids" >&2; exit 1; }
}
p=data/prompts
cut_prompt short 40 $p/python-1-short.txt $p/python-4-medium.txt
cut_prompt medium 120 $p/manual-4-medium.txt
cut_prompt crossing 250 $p/python-4-medium.txt $p/python-5-medium.txt
cut_prompt long 300 $p/manual-5-medium.txt $p/manual-6-medium.txt
cut_prompt ring 767 $p/python-8-long.txt
cut_prompt longest 900 $p/manual-8-long.txt
build/test/oracle trace "data/$pair/target" "data/$pair/drafter" 48 short="$work/short" medium="$work/medium" crossing="$work/crossing" \
    long="$work/long" ring="$work/ring" longest="$work/longest" >"test/reference/${pair}_trace.json"
