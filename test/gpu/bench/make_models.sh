#!/bin/bash
# usage: make_models.sh BIN DIR [NAME...]: models of real shapes with random weights for table_gpu, those that are not there
set -e
configs=$(cd "$(dirname "$0")/../../../data/configs" && pwd)
bin=$1 dir=$2
shift 2
mkdir -p "$dir"
make_one() { # NAME CONFIG TYPE [FLAG...]
    [ -s "$dir/$1.gguf" ] || "$bin/dflash-convert" -q "$configs/$2.json" --random 1 --type "$3" -o "$dir/$1.gguf" "${@:4}"
}
for name in ${@:-8b-q4_k_m 8b-draft-q8_0 8b-draft-q4_k_m 0.6b-q4_k_m 8b-q8_0 8b-bf16}; do
    case $name in
        8b-draft-*) make_one "$name" qwen3-8b-dflash "${name#8b-draft-}" ;;
        8b-*) make_one "$name" qwen3-8b "${name#8b-}" ;;
        0.6b-*) make_one "$name" qwen3-0.6b "${name#0.6b-}" ;;
        27b-draft-*) make_one "$name" qwen3.5-27b-dflash "${name#27b-draft-}" ;;
        27b-*) make_one "$name" qwen3.5-27b "${name#27b-}" ;;
        31b-draft-*) make_one "$name" gemma-4-31b-dflash "${name#31b-draft-}" ;;
        31b-*) make_one "$name" gemma-4-31b "${name#31b-}" ;;
        35b-a3b-draft-*) make_one "$name" qwen3.5-35b-a3b-dflash "${name#35b-a3b-draft-}" ;;
        35b-a3b-*) make_one "$name" qwen3.5-35b-a3b "${name#35b-a3b-}" ;;
        30b-a3b-draft-*) make_one "$name" qwen3-30b-a3b-dflash "${name#30b-a3b-draft-}" ;;
        30b-a3b-*) make_one "$name" qwen3-30b-a3b "${name#30b-a3b-}" ;;
        26b-a4b-draft-*) make_one "$name" gemma-4-26b-a4b-dflash "${name#26b-a4b-draft-}" ;;
        26b-a4b-*) make_one "$name" gemma-4-26b-a4b "${name#26b-a4b-}" ;;
        *) echo "make_models.sh: $name: unknown" >&2; exit 2 ;;
    esac
done
