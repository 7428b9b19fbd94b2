#!/bin/bash
# golden.sh - token streams that the engine must write on any machine: the CPU's bits are the same everywhere.
#
# usage: test/golden/golden.sh check|make BIN_DIR PAIR_DIR      (from the repository's root)
# A stream is 64 ids after a held-out prompt, NAME = target type, setting, prompt; those of the hybrid pair begin with
# "hybrid-". `make` writes test/golden/*.tok anew: do that
# only with a change that is meant to change the arithmetic, and say so in the commit.
set -u
verb=$1 bin=$2 pair=$3 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
types="f32 bf16 f16 q8_0 q4_0 q5_0 q4_k q5_k q6_k q4_k_m" prefix=
case $pair in *pair-hybrid) types="bf16 q8_0 q4_k_m" prefix=hybrid- ;; esac
for type in $types; do
    for prompt in python-2-short manual-4-medium; do
        "$bin/dflash-tokenize" -m "$pair/target-$type.gguf" <"data/prompts/$prompt.txt" >"$work/prompt"
        for setting in greedy sampled; do
            flags=
            [ $setting = sampled ] && flags="--temp 0.8 --top-k 100 --top-p 0.95 --min-p 0.01 --repeat-penalty 1.05 --seed 42"
            name=$prefix$type-$setting-$prompt
            # shellcheck disable=SC2086
            "$bin/dflash-generate" -q -m "$pair/target-$type.gguf" -n 64 --ignore-eos $flags <"$work/prompt" >"$work/$name.tok" || failed=1
            if [ "$verb" = make ]; then
                cp "$work/$name.tok" test/golden/
            elif cmp -s "$work/$name.tok" "test/golden/$name.tok"; then
                echo "ok   golden/$name"
            else
                echo "FAIL golden/$name: $("$bin/dflash-bench" compare "$work/$name.tok" "test/golden/$name.tok" 2>&1)"
                failed=1
            fi
        done
    done
done
exit $failed
