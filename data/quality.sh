#!/bin/bash
# quality.sh - what the types of weights cost the trained pairs' targets: perplexity over windows, and how far each is from
# the target in F32. Prints docs/perplexity.md's table.
#
# usage: data/quality.sh BIN_DIR PAIR_DIR TYPE...      PAIR_DIR/target-TYPE.gguf; f32 is among them
# The text is every long and medium prompt of data/prompts, in windows of 256 tokens.
set -eu
bin=$1 dir=$2 src=$(cd "$(dirname "$0")" && pwd)
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for f in "$src"/prompts/*-long.txt "$src"/prompts/*-medium.txt; do
    "$bin/dflash-tokenize" -m "$dir/target-f32.gguf" <"$f"
done >"$work/text"
"$bin/dflash-prefill" -q -m "$dir/target-f32.gguf" --nll --ctx 256 --kl-save "$work/base" <"$work/text" >"$work/f32"
echo "| $(basename "$dir") | bits a weight | perplexity | ln(perplexity / F32) | KL divergence, mean | 99 % | same top token |"
echo '| --- | --- | --- | --- | --- | --- | --- |'
for t in "$@"; do
    bits=$("$bin/dflash-inspect" "$dir/target-$t.gguf" | sed -n 's/.*: \([0-9.]*\) bits a weight/\1/p')
    "$bin/dflash-prefill" -q -m "$dir/target-$t.gguf" --nll --kl-base "$work/base" | awk -v t="${t^^}" -v bits="$bits" -v f32="$(sed -n 's/^nll //p' "$work/f32")" '
        {v[$1] = $2}
        END {printf "| %s | %s | %.3f +/- %.3f | %+.4f | %.5f +/- %.5f | %.4f | %.2f +/- %.2f %% |\n", t, bits, v["ppl"], v["ppl_error"],
             v["nll"] - f32, v["kl"], v["kl_error"], v["kl_99"], 100 * v["same_top"], 100 * v["same_top_error"]}'
done
