#!/bin/bash
# turns.sh - what a turn of a chat costs: from a state, and with the whole chat run again. The streams are compared.
#
# usage: test/bench/turns.sh BIN_DIR TARGET.gguf TOKENS TURNS [FLAGS...]     FLAGS: more of dflash-generate's, as -d DRAFTER
# Each turn is the next 64 ids of TOKENS, answered by 32. Prints, a line a turn: positions before it, then tokens run and
# seconds of prefill of both ways, the size of the state, and whether both answers are equal. On the CPU they must be; on CUDA a
# row of a prompt of more than 64 rows has a prompt's precision, so the answer to the whole chat at once may be another.
set -euo pipefail
PATH="$(cd "$1" && pwd):$PATH" target=$2 tokens=$3 turns=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-q -m "$target" -n 32 --ignore-eos "$@")
field() { sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p" "$work/stats"; }
state=
: >"$work/all"
echo "before  state: tokens  seconds    again: tokens  seconds    state MiB  answers"
for ((i = 0; i < turns; i++)); do
    head -c $((i * 256 + 256)) "$tokens" | tail -c 256 >"$work/turn"
    before=$(($(stat -c %s "$work/all") / 4))
    # shellcheck disable=SC2086
    dflash-generate "${flags[@]}" $state --save-state "$work/state" --stats "$work/stats" <"$work/turn" >"$work/answer"
    line="$(printf '%6d %14d %8.3f' "$before" "$(field prefilled_tokens)" "$(field prefill_s)")"
    state="--state $work/state --append"
    cat "$work/turn" >>"$work/all"
    dflash-generate "${flags[@]}" --stats "$work/stats" <"$work/all" >"$work/again"
    same=equal
    cmp -s "$work/answer" "$work/again" || same=other
    [ $same = equal ] || [[ " $* " == *" cuda "* ]] || { cmp "$work/answer" "$work/again"; exit 1; }
    cat "$work/answer" >>"$work/all"
    printf '%s %16d %8.3f %12.1f  %s\n' "$line" "$(field prefilled_tokens)" "$(field prefill_s)" \
        "$(($(stat -c %s "$work/state") / 104858))e-1" $same
done
