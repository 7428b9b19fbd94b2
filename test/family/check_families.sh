#!/bin/bash
# check_families.sh - every family at odd sizes with random weights: what runs must agree with itself.
#
# usage: test/family/check_families.sh BIN_DIR WORK_DIR [NAME...]      (run from the repository's root)
# Each test/family/NAME.json is a target's config.json. With weights of every kind, for a drafter of random weights over it:
#   plain == drafted, greedy and sampled, for several blocks and chunks;  scalar == best instruction set;  1 thread == 3;
#   a saved state continues as if it had not been saved;  logits of one pass == logits of chunks of 1 row's size, to the bit;
#   --check finds nothing;  a GGUF converted again is the same.
# Vocabularies are tiny, so that even a random drafter has proposals accepted: none, some and several in a row occur.
# DEVICE=cuda in the environment: the same on the GPU, where instruction sets are no axis and the chunk of the prompt is part of a
# stream's identity. PROMPT=256: prompts of so many tokens instead of 45 (rings of windows are multiples of 256).
# Prints "ok   family/NAME/..." or "FAIL family/NAME/..." a check; exit 1 if any failed.
set -u
root=$PWD
device=${DEVICE:-cpu}
case $1 in /*) bin=$1 ;; *) bin=$root/$1 ;; esac
work=$2
shift 2
PATH="$bin:$PATH"
mkdir -p "$work"
failed=0
verdict() { # STATUS NAME DETAIL
    if [ "$1" = 0 ]; then
        echo "ok   family/$2${3:+: $3}"
    else
        echo "FAIL family/$2${3:+: $3}"
        failed=1
    fi
}
number() { # FILE KEY: the integer at "KEY": in a config
    sed -n "s/^ *\"$2\": *\([0-9]*\),*$/\1/p" "$1" | head -n 1
}
prompt() { # N VOCAB SEED: ids as int32
    local i x=$3 out=
    for ((i = 0; i < $1; i++)); do
        x=$(((x * 1103515245 + 12345) % 2147483648))
        out+=$(printf '\\x%02x\\0\\0\\0' $((x / 65536 % $2)))
    done
    printf "$out"
}
drafter_config() { # WIDTH LAYERS VOCAB
    cat <<JSON
{"architectures": ["DFlashDraftModel"], "attention_bias": false, "block_size": 6, "head_dim": 32, "hidden_act": "silu",
 "dflash_config": {"mask_token_id": $(($3 - 1)), "target_layer_ids": [$(seq -s, 0 $(($2 > 1 ? $2 - 1 : 1)) $(($2 - 1)))], "is_causal": false},
 "hidden_size": $1, "intermediate_size": 96, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 40,
 "use_sliding_window": true, "max_position_embeddings": 4096, "model_type": "qwen3", "num_attention_heads": 4,
 "num_hidden_layers": 2, "num_key_value_heads": 2, "num_target_layers": $2, "rms_norm_eps": 1e-6, "rope_theta": 10000,
 "vocab_size": $3}
JSON
}
run() { # OUT MODEL ARGS...: 40 tokens after the prompt
    local out=$1
    shift
    dflash-generate -q -m "$@" -n 40 --ignore-eos --device $device <p.i32 >"$out"
}
same() { # NAME A ARGS...: run ARGS and compare with A
    local name=$1 want=$2
    shift 2
    run got.i32 "$@" && cmp -s got.i32 "$want" && [ -s "$want" ]
    verdict $? "$name"
}

check_type() { # NAME TYPE
    local name=$1 type=$2 s
    rm -f t.gguf d.gguf again.gguf state
    dflash-convert -q t.json --random 3 --type "$type" -o t.gguf && dflash-convert -q d.json --random 4 --type "$type" -o d.gguf &&
        dflash-convert -q t.gguf -o again.gguf && cmp -s t.gguf again.gguf
    verdict $? "$name/$type/convert" || return
    dflash-inspect t.gguf --check >check.txt 2>&1
    verdict $? "$name/$type/inspect"
    for s in "--temp 0" "--temp 3 --top-k 3 --seed 5"; do
        run plain.i32 t.gguf $s || { verdict 1 "$name/$type/plain $s"; continue; }
        run drafted.i32 t.gguf -d d.gguf $s --stats stats.json && cmp -s drafted.i32 plain.i32
        verdict $? "$name/$type/drafted $s" "accepted $(sed -n 's/.*"accepted_histogram":\(\[[0-9,]*\]\).*/\1/p' stats.json)"
        # the rest for a float and a block type
        [ "$type" = f32 ] || [ "$type" = q4_k_m ] || continue
        [ "$device" = cpu ] && same "$name/$type/plain $s, scalar, 3 threads" plain.i32 t.gguf $s --isa scalar --threads 3
        [ "$device" = cpu ] || run plain.i32 t.gguf $s --chunk 7
        same "$name/$type/drafted $s, block 3, chunk 7" plain.i32 t.gguf -d d.gguf $s --block 3 --chunk 7
    done
    dflash-prefill -q -m t.gguf -d d.gguf --device $device --chunk 16 -o state <p.i32 && run plain.i32 t.gguf --chunk 16 &&
        dflash-generate -q -m t.gguf -d d.gguf --state state -n 40 --ignore-eos --device $device >got.i32 && cmp -s got.i32 plain.i32
    verdict $? "$name/$type/state"
    [ "$device" = cpu ] || return 0
    dflash-prefill -q -m t.gguf --device $device --logits whole.f32 <p.i32 >state &&
        dflash-prefill -q -m t.gguf --device $device --chunk 1 --logits rows.f32 <p.i32 >state && cmp -s whole.f32 rows.f32
    verdict $? "$name/$type/rows"
}

[ $# -gt 0 ] || set -- $(cd test/family && ls -- *.json | sed 's/\.json$//')
for name; do
    json=$root/test/family/$name.json
    mkdir -p "$work/$name"
    cd "$work/$name" || exit 4
    cp "$json" t.json
    drafter_config "$(number t.json hidden_size)" "$(number t.json num_hidden_layers)" "$(number t.json vocab_size)" >d.json
    prompt "${PROMPT:-45}" "$(number t.json vocab_size)" 7 >p.i32
    for type in f32 bf16 q8_0 q4_k_m; do check_type "$name" "$type"; done
    cd "$root" || exit 4
done
exit $failed
