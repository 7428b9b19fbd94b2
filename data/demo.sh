#!/bin/bash
# demo.sh - the main job, from Hugging Face files to text, each step a program: what `make demo` runs.
#
# usage: data/demo.sh BIN_DIR OUT_DIR [PAIR_DIR [PROMPT.txt]]      (from the repository's root)
# The files go to OUT_DIR/PAIR, a folder a pair.
set -euo pipefail
bin=$1 hf=${3:-$(dirname "$0")/pair} prompt=${4:-}
out=$2/$(basename "$hf")
[ -n "$prompt" ] || prompt=$(ls "$(dirname "$0")"/prompts/python-*-medium.txt | head -n 1)
mkdir -p "$out"
PATH="$(cd "$bin" && pwd):$PATH"

step() { # show a command as one would type it, then run it
    printf '\n$ %s\n' "$*"
    eval "$*"
}

step "dflash-convert $hf/target  -o $out/target-bf16.gguf  --type bf16 --force"
step "dflash-convert $hf/drafter -o $out/drafter-bf16.gguf --type bf16 --force --target $hf/target"
step "dflash-quantize $out/target-bf16.gguf  -o $out/target.gguf  --type q4_k_m --force 2>&1 | tail -n 1"
step "dflash-quantize $out/drafter-bf16.gguf -o $out/drafter.gguf --type q8_0 --force 2>&1 | tail -n 1"
step "dflash-inspect --check $out/target.gguf"
step "dflash-inspect --pair $out/target.gguf $out/drafter.gguf"
step "dflash-tokenize -m $out/target.gguf < $prompt > $out/prompt.tok"
step "dflash-prefill -q -m $out/target.gguf -d $out/drafter.gguf < $out/prompt.tok > $out/prompt.state"
# sampled: a model this small repeats itself when greedy, and repetition is easy to draft
sampling="-n 256 --temp 0.8 --seed 1"
step "dflash-generate -m $out/target.gguf $sampling --state $out/prompt.state > $out/plain.tok"
# a fixed width: by default a model this small is not drafted for
step "dflash-generate -m $out/target.gguf -d $out/drafter.gguf --width 8 $sampling --state $out/prompt.state > $out/drafted.tok"
step "cmp $out/plain.tok $out/drafted.tok && echo the two streams are equal, byte for byte"
step "dflash-inspect $out/target.gguf | head -n 12"
step "cat $out/prompt.tok $out/drafted.tok | dflash-tokenize -m $out/target.gguf --decode | tail -n 24"
printf '\n\n'
