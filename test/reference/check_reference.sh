#!/bin/bash
# check_reference.sh - the engine against the reference implementation's numbers and against the float64 oracle.
#
# usage: test/reference/check_reference.sh BIN_DIR WORK_DIR      (run from the repository's root)
# DEVICE=cuda in the environment: the same on the GPU, whose prompts of more than 64 rows round factors to 11 bits.
# Prints "ok   reference/NAME" or "FAIL reference/NAME" a check; exit 1 if any failed.
set -u
bin=$1 work=$2
device=${DEVICE:-cpu}
here=test/reference
oracle=$(dirname "$bin")/test/oracle
offers=$(dirname "$bin")/test/offers
PATH="$bin:$PATH"
mkdir -p "$work"
failed=0
check() { # NAME COMMAND...: one line of verdict; the command's output only where it fails, or its last line
    local what=$1 out
    shift
    if out=$("$@" 2>&1); then
        echo "ok   reference/$what: ${out##*$'\n'}"
    else
        echo "FAIL reference/$what"
        echo "$out" | tail -n 8 | sed 's/^/    /'
        failed=1
    fi
}
families="llama qwen3moe qwen35 qwen35moe gemma4 gemma4moe" # beside qwen3; each is one archive
for a in qwen3 dflash dflash_swa dflash2 jetspec dspark domino qwen35_mtp qwen35moe_mtp gemma4_assistant $families; do
    [ -d "$work/$a" ] || tar -xJf "$here/$a.txz" -C "$work"
done
[ -d "$work/hidden" ] || { mkdir "$work/hidden" && tar -xJf "$here/hidden.txz" -C "$work/hidden"; }
cd "$work" || exit 4
root=$OLDPWD
oracle=$root/$oracle offers=$root/$offers
[ "${bin#/}" != "$bin" ] || PATH="$root/$bin:$PATH"

convert() { # IN OUT ARGS...
    local in=$1 out=$2
    shift 2
    rm -f "$out"
    dflash-convert -q "$in" -o "$out" "$@"
}
dflash-prefill() { command dflash-prefill --device "$device" "$@"; }
dflash-generate() { command dflash-generate --device "$device" "$@"; }
# What every layer leaves, against the reference's, which are rounded to float16: names the first layer at fault.
hidden() { # FAMILY MODEL CHUNK TOLERANCE [VERB]
    dflash-prefill -q -m "$2" --kv f32 --chunk "$3" --hidden h.f32 <"$1/prompt.i32" >/dev/null && "$oracle" "${5:-hidden}" h.f32 "hidden/$1.npy" "$4"
}
family_ids() { dflash-generate -q -m f.gguf --kv f32 --chunk "${2:-512}" -n 48 --ignore-eos <"$1/prompt.i32" >got.i32 && cmp got.i32 "$1/greedy.i32" && echo "48 ids equal"; }
family_logits() { dflash-prefill -q -m f.gguf --kv f32 --chunk "$2" --logits got.f32 <"$1/prompt.i32" >/dev/null && "$oracle" floats got.f32 "$1/logits.f32" 1e-4; }

# Blocks that predict further tokens: the first draft behind four prompts, by the target's file and by one of its own. The archive's
# files go over the target's.
mtp_files() { # FAMILY
    rm -rf all && cp -r "$1" all && cp "$1_mtp"/config.json "$1_mtp"/*.safetensors* all && convert all m.gguf --type f32 && convert all a.gguf --type f32 --mtp only
}
slice() { tail -c +$((4 * $2 + 1)) "$1" | head -c $((4 * $3)); } # FILE FIRST N: numbers of 4 bytes
mtp() { # FAMILY WHICH DRAFTER: proposals and logits of prompt WHICH, 0 to 3; its row of mtp_tokens is n, the anchor, three drafts
    local n
    n=$(slice "$1_mtp/mtp_tokens.i32" $((5 * $2)) 1 | od -An -td4)
    slice "$1/prompt.i32" 0 "$n" >p.i32
    rm -f got.trace got.f32
    dflash-generate -q -m m.gguf -d "$3" --kv f32 --chunk 64 -n 8 --width 4 --ignore-eos --draft-trace got.trace --draft-logits got.f32 <p.i32 >got.i32 &&
        cmp <(slice got.trace 0 3) <(slice "$1_mtp/mtp_tokens.i32" $((5 * $2 + 2)) 3) &&
        slice got.f32 512 1536 >rows.f32 && slice "$1_mtp/mtp_logits.f32" $((1536 * $2)) 1536 >want.f32 && "$oracle" floats rows.f32 want.f32 1e-4
}
# the row of the first token, which other engines put in front, must show: 0.5 to 1.4 behind 9 tokens
mtp_row() { slice "$1_mtp/mtp_logits_row0.f32" 0 1536 >want.f32 && ! "$oracle" floats rows.f32 want.f32 1e-1; }
# Gemma 4's assistant, with its own head and with clusters, under the target's rule of the window. Tolerances as the oracle's: scores
# carry no 1/sqrt(D), and the rounding of rope's angles to float32 in the reference moves logits the more, the longer the prompt.
assistant() { # FOLDER WHICH TOLERANCE
    local n
    n=$(slice "$1/assistant_tokens_strict.i32" $((5 * $2)) 1 | od -An -td4)
    slice gemma4/prompt.i32 0 "$n" >p.i32
    rm -f got.trace got.f32
    dflash-generate -q -m m.gguf -d a.gguf --kv f32 --chunk 64 -n 8 --width 4 --ignore-eos --draft-trace got.trace --draft-logits got.f32 <p.i32 >got.i32 &&
        cmp <(slice got.trace 0 3) <(slice "$1/assistant_tokens_strict.i32" $((5 * $2 + 2)) 3) &&
        slice got.f32 512 1536 >rows.f32 && slice "$1/assistant_logits_strict.f32" $((1536 * $2)) 1536 >want.f32 && "$oracle" floats rows.f32 want.f32 "$3"
}
# transformers' window, two keys longer, must show
assistant_window() { slice "$1/assistant_logits.f32" 4608 1536 >want.f32 && ! "$oracle" floats rows.f32 want.f32 1e-1; }
mtp_all() {
    local f i d
    for f in qwen35 qwen35moe; do
        check "$f MTP converts" mtp_files "$f"
        for i in 3 2 1 0; do
            for d in target a.gguf; do check "$f MTP drafts, prompt $i, -d $d" mtp "$f" "$i" "$d"; done
        done
        check "$f MTP: a row of the first token would show" mtp_row "$f"
    done
    check "gemma4 converts" convert gemma4 m.gguf --type f32
    for f in gemma4_assistant gemma4_assistant/centroid; do
        check "$f converts" convert "$f" a.gguf --type f32
        for i in 0 1; do check "$f drafts, prompt $i" assistant "$f" "$i" 2e-4; done
        for i in 2 3; do check "$f drafts, prompt $i" assistant "$f" "$i" 1e-3; done
        check "$f: another window would show" assistant_window "$f"
    done
}

# Drafters of the other kinds: the reference's logits of the block behind the prompt, and what it proposes at six anchors (the smallest
# margin is 2e-3, so ids are equal); the target's stream whatever is proposed, of weights of fewer bits too.
anchors() { od -An -v -td4 -w8 "$1/anchors.i32"; } # a prompt's length and the pick behind it, a line each
proposals() { # DIR HOW_MANY
    local n id k=0 bytes=$((4 * $2))
    while read -r n id; do
        head -c $((4 * n)) qwen3/prompt.i32 | dflash-generate -q -m t.gguf -d k.gguf --kv f32 --chunk 64 -n 2 --ignore-eos --width $(($2 + 1)) --draft-window all --draft-trace got.trace >got.i32 &&
            [ "$(od -An -td4 -N4 got.i32)" -eq "$id" ] && cmp <(head -c $bytes got.trace) <(tail -c +$((bytes * k + 1)) "$1/proposals.i32" | head -c $bytes) || return 1
        k=$((k + 1))
    done < <(anchors "$1")
    [ $k = 6 ] && echo "$((k * $2)) proposals equal"
}
stream() { dflash-generate -q -m t.gguf --kv f32 --chunk 64 -n 48 --ignore-eos "$@" <qwen3/prompt.i32; }
streams_equal() { # TYPE: greedy and sampled, of three widths, gone on with from a state
    rm -f ktype.gguf k.state && dflash-quantize -q k.gguf -o ktype.gguf --type "$1" || return 1
    head -c 200 qwen3/prompt.i32 | dflash-prefill -q -m t.gguf -d ktype.gguf --kv f32 --chunk 64 -o k.state && tail -c +201 qwen3/prompt.i32 >rest.i32 || return 1
    local t w
    for t in 0 0.8 1.2; do
        stream --temp $t >plain.i32
        for w in 1 3 8; do
            stream --temp $t -d ktype.gguf --width $w --draft-trace whole.trace | cmp - plain.i32 || return 1
            dflash-generate -q -m t.gguf -d ktype.gguf --kv f32 --chunk 64 --state k.state --append -n 48 --ignore-eos --temp $t --width $w --draft-trace got.trace <rest.i32 | cmp - plain.i32 && cmp got.trace whole.trace || return 1
        done
    done
    echo "9 streams and their traces equal, whole and from a state"
}
# What is picked from: where logits are corrected, after that. rows: that propose, from the first row of the file on.
block_logits() { # FILE ROWS FLAGS...
    dflash-generate -q -m t.gguf -d k.gguf --kv f32 --chunk 64 -n 4 --ignore-eos --draft-window all --draft-logits got.f32 "${@:3}" <qwen3/prompt.i32 >got.i32 &&
        "$oracle" floats got.f32 <(head -c $((2048 * $2)) "$1") 1e-4
}
drafter() { # DIR PROPOSALS ROWS [corrected]
    local what=${1//\//, }
    check "$what converts" convert "$1" k.gguf --type f32 --target qwen3
    check "$what ${4:-draft} logits" block_logits "$1/${4:-draft}_logits.f32" "$3"
    check "$what proposals" proposals "$1" "$2"
    check "$what streams, q8_0" streams_equal q8_0
    check "$what streams, q4_k_m" streams_equal q4_k_m
    [ "$device" != cpu ] || [ "${1%%/*}" = dspark ] || check "$what against its checkpoint" dflash-inspect --diff "$1" k.gguf --tolerance 0
}
confidences() { # DIR: of the blocks at the six anchors
    local n id k=0
    while read -r n id; do
        head -c $((4 * n)) qwen3/prompt.i32 | "$offers" t.gguf k.gguf >got.f32 && "$oracle" floats got.f32 <(tail -c +$((28 * k + 1)) "$1/confidence.f32" | head -c 28) 1e-5 || return 1
        k=$((k + 1))
    done < <(anchors "$1")
    [ $k = 6 ] && echo "42 confidences within 1e-5"
}
drafters() {
    for k in dspark dspark/gated dspark/rnn; do
        drafter $k 7 7 corrected
        [ "$device" != cpu ] || check "${k/\//, } confidences" confidences $k
    done
    # its own copies of embedding and head, kept where the target is not given
    check "dspark converts, its ends kept" convert dspark k.gguf --type f32
    check "dspark proposals, of its own ends" proposals dspark 7
    [ "$device" != cpu ] || check "dspark against its checkpoint" dflash-inspect --diff dspark k.gguf --tolerance 0
    drafter domino 7 8 corrected
    drafter domino/shift 7 7 corrected # its last row is not asked
    drafter jetspec 7 8
    check "jetspec, oracle" bash -c "'$oracle' draft qwen3 jetspec <qwen3/prompt.i32 >o.f32 && '$oracle' floats o.f32 jetspec/draft_logits.f32 1e-4"
    check "jetspec, beside its target" bash -c "dflash-inspect --pair t.gguf k.gguf | grep 'all causal in the block, as JetSpec'"
    bidirectional_differs() { ! block_logits jetspec/draft_logits.f32 8 --draft-causal 0; }
    check "jetspec, bidirectional: another drafter" bidirectional_differs
}

d2_proposals() { # prompts of the first n ids, pairs of n and anchor in anchors.i32; 7 proposals each
    local i n
    for i in 0 1 2 3 4 5; do
        n=$(od -An -td4 -j $((8 * i)) -N 4 dflash2/anchors.i32)
        head -c $((4 * n)) qwen3/prompt.i32 | dflash-generate -q -m t.gguf -d d2.gguf --kv f32 --chunk 64 -n 2 --ignore-eos --width 8 --draft-window all --draft-trace got.trace >got.i32 || return 1
        [ "$(od -An -td4 -N 4 got.i32)" = "$(od -An -td4 -j $((8 * i + 4)) -N 4 dflash2/anchors.i32)" ] || { echo "anchor $i differs"; return 1; }
        cmp <(head -c 28 got.trace) <(tail -c +$((28 * i + 1)) dflash2/proposals.i32 | head -c 28) || return 1
        rm got.trace
    done
    echo "6 blocks of 7 proposals equal"
}

# A device: passes of up to 64 rows are as near as the CPU's. Longer ones round the factors of a product to 11 bits, so a value is off by
# 2^-11 of it at most. A block has six products one after another (q and k, scores, values, out, up, down): 6 * 2^-11 = 2.9e-3 of the
# norm of what it leaves, and the errors of blocks add at worst. (One value may be further off; q8_0 in one block is 5e-2.) Not for
# experts: a row whose second and third are close gets others by such an error.
if [ "$device" != cpu ]; then
    for f in qwen3 ${FAMILIES:-$families}; do
        check "$f converts" convert "$f" f.gguf --type f32
        check "$f hidden states, passes of 64 rows" hidden "$f" f.gguf 64 1e-4
        [ "${f%moe}" != "$f" ] || check "$f hidden states, one pass" hidden "$f" f.gguf 512 2.9e-3 hidden-norm
        check "$f logits, passes of 64 rows" family_logits "$f" 64
        check "$f greedy ids" family_ids "$f" 64
    done
    # a DFlash2 drafter, whose operations are its own
    convert qwen3 t.gguf --type f32 && check "dflash2 converts" convert dflash2 d2.gguf --type f32 --target qwen3
    check "dflash2 proposals" d2_proposals
    d2_draft() { dflash-generate -q -m t.gguf -d d2.gguf --kv f32 --chunk 64 -n 4 --ignore-eos --draft-window all --draft-logits got.f32 <qwen3/prompt.i32 >got.i32 && "$oracle" floats got.f32 dflash2/draft_logits.f32 1e-4; }
    check "dflash2 draft logits" d2_draft
    mtp_all
    convert qwen3 t.gguf --type f32 && drafters
    exit $failed
fi

# float32 weights and cache: the engine's distance from the reference is rounding alone (1e-4: README.md)
convert qwen3 t.gguf --type f32 && convert dflash d.gguf --type f32 --target qwen3 && convert dflash_swa s.gguf --type f32 --target qwen3 &&
    convert dflash2 d2.gguf --type f32 --target qwen3 || {
    echo "FAIL reference/convert"
    exit 1
}
logits() { dflash-prefill -q -m "$1" --kv "$2" --chunk "$3" --logits got.f32 <qwen3/prompt.i32 >/dev/null; }
compare_logits() { logits "$1" "$2" "$3" && "$oracle" floats got.f32 "$4" "$5"; }
check "oracle logits" bash -c "'$oracle' logits qwen3 <qwen3/prompt.i32 >o.f32 && '$oracle' floats o.f32 qwen3/logits.f32 1e-4"
check "oracle logits, qwen35" bash -c "'$oracle' logits qwen35 <qwen35/prompt.i32 >o.f32 && '$oracle' floats o.f32 qwen35/logits.f32 1e-4"
check "qwen3 logits f32" compare_logits t.gguf f32 512 qwen3/logits.f32 1e-4
check "qwen3 logits f32, chunks of 7" compare_logits t.gguf f32 7 qwen3/logits.f32 1e-4
check "qwen3 hidden states" hidden qwen3 t.gguf 512 1e-4
check "qwen3 hidden states, chunks of 7" hidden qwen3 t.gguf 7 1e-4
# a fault in one block must be found there
fault_found() { rm -f b.gguf; dflash-quantize -q t.gguf -o b.gguf --type f32 --tensor-type 'blk.1.*=q8_0' && ! hidden qwen3 b.gguf 512 1e-4 >fault.txt && grep "plane 2 of 4, what block 1 leaves" fault.txt; }
check "a fault in block 1 is named" fault_found
same_ids() { dflash-generate -q -m t.gguf --kv f32 -n 48 --ignore-eos "$@" <qwen3/prompt.i32 >got.i32 && cmp got.i32 "$ids" && echo "48 ids equal"; }
ids=qwen3/greedy.i32
check "qwen3 greedy ids" same_ids
ids=dflash/spec.i32
check "dflash loop ids" same_ids -d d.gguf
ids=dflash_swa/spec.i32
check "dflash_swa loop ids" same_ids -d s.gguf
draft() { dflash-generate -q -m t.gguf -d "$1" --kv f32 -n 4 --ignore-eos --draft-window all --draft-logits got.f32 <qwen3/prompt.i32 >got.i32 && "$oracle" floats got.f32 "$2" 1e-4; }
check "dflash draft logits" draft d.gguf dflash/draft_logits.f32
check "dflash_swa draft logits, masked oracle" bash -c "'$oracle' draft qwen3 dflash_swa <qwen3/prompt.i32 >swa.f32"
check "dflash_swa draft logits" draft s.gguf swa.f32
# the window must show: the oracle with it differs from the stored logits without it
check "the window shows" bash -c "! '$oracle' floats swa.f32 dflash_swa/draft_logits.f32 1e-2"

# DFlash2: the reference's logits (after multiplier and softcap), its loop, its proposals behind prompts of several lengths; every
# cycle against the oracle, in passes of other rows, and of a saved state
ids=dflash2/spec.i32
check "dflash2 loop ids" same_ids -d d2.gguf
check "dflash2 draft logits" draft d2.gguf dflash2/draft_logits.f32
check "dflash2 draft logits, oracle" bash -c "'$oracle' draft qwen3 dflash2 <qwen3/prompt.i32 >o.f32 && '$oracle' floats o.f32 dflash2/draft_logits.f32 1e-4"
check "dflash2 proposals" d2_proposals
check "dflash2 trace, oracle" bash -c "'$oracle' trace qwen3 dflash2 48 p=qwen3/prompt.i32 >d2.json"
d2_trace() { dflash-generate -q -d d2.gguf --kv f32 --ignore-eos -n 48 --width 8 --draft-window all --draft-trace got.trace --force "$@" >got.i32 && "$oracle" check d2.json p got.i32 got.trace 0.001; }
d2_prompt() { d2_trace -m t.gguf "$@" <qwen3/prompt.i32; }
check "dflash2 trace" d2_prompt
check "dflash2 trace, chunks of 7" d2_prompt --chunk 7
check "dflash2 trace, scalar, one thread" d2_prompt --isa scalar --threads 1
d2_state() { dflash-prefill -q -m t.gguf -d d2.gguf --kv f32 -o d2.state --force <qwen3/prompt.i32 && d2_trace -m t.gguf --state d2.state; }
check "dflash2 trace, from a state" d2_state

drafters # of the other kinds

# every other family: logits at every position in one pass and in chunks, hidden states, 48 greedy ids, and the GGUF against the
# checkpoint
for f in $families; do
    check "$f converts" convert "$f" f.gguf --type f32
    check "$f logits f32" family_logits "$f" 512
    check "$f logits f32, chunks of 7" family_logits "$f" 7
    check "$f hidden states" hidden "$f" f.gguf 512 1e-4
    check "$f greedy ids" family_ids "$f"
    check "$f against its checkpoint" dflash-inspect --diff "$f" f.gguf --tolerance 0
done

mtp_all

# every cycle of drafting on the trained pairs
generate() { # KV FLAGS...
    local kv=$1
    shift
    dflash-generate -q -m "$pair/target-bf16.gguf" -d "$pair/drafter-bf16.gguf" --kv "$kv" --ignore-eos "$@" <p.i32 >got.i32
}
pair_trace() { generate "$1" -n 48 --width 8 --draft-window all --draft-trace got.trace && "$oracle" check "$trace" "$name" got.i32 got.trace "$2"; }
# the first block's logits: an error of one in a window shows here long before it changes an id
first_block() { generate f32 -n 2 --draft-window all --draft-logits got.f32 && "$oracle" tops "$trace" "$name" got.f32 1e-3; }
# by default full layers see three windows: the oracle with that rule, and not without
three_windows() {
    ORACLE_WINDOWS=3 "$oracle" trace "$root/data/$which/target" "$root/data/$which/drafter" 8 longest=p.i32 >three.json &&
        generate f32 -n 8 --width 8 --draft-trace got.trace && "$oracle" check three.json longest got.i32 got.trace 0.001 || return 1
    generate f32 -n 2 --draft-logits got.f32 && "$oracle" tops three.json longest got.f32 1e-3 && ! "$oracle" tops "$trace" longest got.f32 1e-3 >differs.txt
}
for which in pair pair-hybrid; do
    trace=$root/$here/${which}_trace.json pair=$root/build/$which label=
    [ $which = pair ] || label="hybrid "
    for name in $(sed 's/"name":"/\n&/g' "$trace" | sed -n 's/^"name":"\([^"]*\)".*/\1/p'); do
        "$oracle" prompt "$trace" "$name" >p.i32
        check "${label}trace $name kv f32" pair_trace f32 0.001
        check "${label}trace $name kv f16" pair_trace f16 0.02
        check "${label}trace $name kv bf16" pair_trace bf16 0.1
        check "${label}first block's logits $name" first_block
    done
    check "${label}trace longest, three windows" three_windows # its prompt is the last
done
exit $failed
