#!/bin/bash
# check_families.sh - every family at small sizes with random weights: what runs must agree with itself.
#
# usage: test/family/check_families.sh BIN_DIR WORK_DIR [NAME...]      (run from the repository's root)
# Each test/family/NAME.json is a target's config.json, of odd sizes; each test/family/real/NAME.json one that has the heads of a published
# model (their size, number and ratio) and rows of 256 columns and more, which is what the fast kernels of CUDA are for, but few and
# narrow layers. With weights of several kinds, for a drafter of random weights over it:
#   plain == drafted, greedy and sampled, for several blocks, widths and chunks;  scalar == best instruction set;  1 thread == 3;
#   a saved state continues as if it had not been saved;  logits of one pass == logits of passes of fewer rows, to the bit;
#   --check finds nothing;  a GGUF converted again is the same.
# Vocabularies are tiny, so that even a random drafter has proposals accepted: none, some and several in a row occur.
#
# DEVICE=cuda in the environment: the same on the GPU, where instruction sets are no axis and the chunk of the prompt is part of a
# stream's identity. Families of real heads then have prompts of 1,100 and 9,000 tokens too: contexts of many leaves of 64 keys and
# nodes of 512, for which attention has other kernels. Of the odd sizes a float and a block type stand for all: kernels differ by
# type in products alone, which lossless and mm_gpu run in every type.
# TYPES: those instead. PROMPT=256: prompts of so many tokens instead of 45 (rings of windows are multiples of 256). JOBS: processes
# at once (default: 1, on a device a core each, for a process does little but start).
# Prints "ok   family/NAME/..." or "FAIL family/NAME/..." a check; exit 1 if any failed.
set -u
root=$PWD
device=${DEVICE:-cpu}
case $1 in /*) bin=$1 ;; *) bin=$root/$1 ;; esac
work=$2
shift 2
PATH="$bin:$PATH"
mkdir -p "$work"
work=$(cd "$work" && pwd)
if [ "$device" = cpu ]; then jobs=${JOBS:-1} odd_types="f32 bf16 q8_0 q4_k_m"; else jobs=${JOBS:-$(nproc)} odd_types="f32 q4_k_m"; fi
real_types="bf16 q8_0 q4_k_m"
verdict() { # STATUS NAME DETAIL
    [ "$1" = 0 ] && echo "ok   family/$2${3:+: $3}" || echo "FAIL family/$2${3:+: $3}"
}
number() { # FILE KEY: the integer at "KEY": in a config
    sed -n "s/^ *\"$2\": *\([0-9]*\),*$/\1/p" "$1" | head -n 1
}
prompt() { # N VOCAB SEED: ids as int32
    local i x=$3 out= id
    for ((i = 0; i < $1; i++)); do
        x=$(((x * 1103515245 + 12345) % 2147483648))
        printf -v id '\\x%02x\\0\\0\\0' $((x / 65536 % $2))
        out+=$id
    done
    printf "$out"
}
drafter_config() { # WIDTH LAYERS VOCAB BLOCK HEADS KV_HEADS HEAD FF WINDOW
    cat <<JSON
{"architectures": ["DFlashDraftModel"], "attention_bias": false, "block_size": $4, "head_dim": $7, "hidden_act": "silu",
 "dflash_config": {"mask_token_id": $(($3 - 1)), "target_layer_ids": [$(seq -s, 0 $(($2 > 1 ? $2 - 1 : 1)) $(($2 - 1)))], "is_causal": false},
 "hidden_size": $1, "intermediate_size": $8, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": $9,
 "use_sliding_window": true, "max_position_embeddings": 40960, "model_type": "qwen3", "num_attention_heads": $5,
 "num_hidden_layers": 2, "num_key_value_heads": $6, "num_target_layers": $2, "rms_norm_eps": 1e-6, "rope_theta": 10000,
 "vocab_size": $3}
JSON
}
prompt_file=p.i32
run() { # OUT MODEL ARGS...: 40 tokens after the prompt
    local out=$1
    shift
    dflash-generate -q -m "$@" -n 40 --ignore-eos --device $device <$prompt_file >"$out"
}
same() { # NAME A ARGS...: run ARGS and compare with A
    local name=$1 want=$2
    shift 2
    run got.i32 "$@" && cmp -s got.i32 "$want" && [ -s "$want" ]
    verdict $? "$name"
}
accepted=0 # proposals, of all runs of the folder
drafted() { # NAME ARGS...
    local name=$1
    shift
    run drafted.i32 t.gguf -d d.gguf "$@" --stats stats.json && cmp -s drafted.i32 plain.i32
    verdict $? "$name" "accepted $(sed -n 's/.*"accepted_histogram":\(\[[0-9,]*\]\).*/\1/p' stats.json)"
    accepted=$((accepted + $(sed -n 's/.*"accepted_histogram":\[\([0-9,]*\)\].*/\1/p' stats.json | awk -F, '{ for (i = 2; i <= NF; i++) n += (i - 1) * $i; print n + 0 }')))
}
models() { # NAME TYPE SEED DRAFTER_SEED
    rm -f t.gguf d.gguf again.gguf state
    dflash-convert -q t.json --random "$3" --type "$2" -o t.gguf && dflash-convert -q d.json --random "$4" --type "$2" -o d.gguf &&
        dflash-convert -q t.gguf -o again.gguf && cmp -s t.gguf again.gguf
    verdict $? "$1/$2/convert" || return
    dflash-inspect t.gguf --check >check.txt 2>&1
    verdict $? "$1/$2/inspect"
}
saved() { # NAME: a state in the middle of the prompt's chunks
    dflash-prefill -q -m t.gguf -d d.gguf --device $device --chunk 16 -o state <$prompt_file && run plain.i32 t.gguf --chunk 16 &&
        dflash-generate -q -m t.gguf -d d.gguf --state state -n 40 --ignore-eos --device $device >got.i32 && cmp -s got.i32 plain.i32
    verdict $? "$1"
}
logits() { # OUT CHUNK
    dflash-prefill -q -m t.gguf --device $device --chunk "$2" --logits "$1" <$prompt_file >state && [ -s "$1" ]
}
rows() { # NAME CHUNK...: logits of passes of 64 rows, and of others
    local name=$1 n
    shift
    logits whole.f32 64 || { verdict 1 "$name"; return; }
    for n; do
        logits rows.f32 "$n" && cmp -s whole.f32 rows.f32
        verdict $? "$name of $n"
    done
}
dflash2() { # NAME TYPE: a DFlash2 drafter of the sizes in d.json, in the place of d.gguf
    sed 's/DFlashDraftModel/DFlash2DraftModel/
        s/"dflash_config": {/&"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 40, "selector_top_k": 2, "output_multiplier": 1.5, /' d.json >d2.json
    rm -f d.gguf state
    dflash-convert -q d2.json --random 6 --type "$2" -o d.gguf
    verdict $? "$1/$2/dflash2, convert" || return
    run plain.i32 t.gguf && drafted "$1/$2/dflash2, drafted, width 6" --width 6
    run plain.i32 t.gguf --temp 3 --top-k 3 --seed 5 --chunk 7 && drafted "$1/$2/dflash2, drafted, sampled, block 3, chunk 7" --temp 3 --top-k 3 --seed 5 --block 3 --width 3 --chunk 7
    saved "$1/$2/dflash2, state"
}

assistant_config() { # of the target in t.json, as wide as it, over its caches
    local wide layers
    wide=$(number t.json hidden_size) layers=$(number t.json num_hidden_layers)
    echo '{"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "use_ordered_embeddings": true,'
    echo "\"num_centroids\": $(number t.json vocab_size), \"centroid_intermediate_top_k\": $(($(number t.json vocab_size) - 1)), \"backbone_hidden_size\": $wide, \"text_config\":"
    sed -e '/"architectures"/,/\],/d' -e '/"final_logit_softcapping"/d' -e 's/\("enable_moe_block": \)true/\1false/' \
        -e 's/\("tie_word_embeddings": \)false/\1true/' \
        -e "s/\(\"num_kv_shared_layers\": \)0/\1$layers/" t.json
    echo '}'
}
own_heads() { # NAME TYPE: what comes with the target, in the place of d.gguf: Qwen3.5's MTP block, Gemma 4's assistant
    local kind=
    rm -f d.gguf state
    if grep -q Qwen3_5 t.json; then
        kind=mtp
        dflash-convert -q t.json --random 6 --mtp only --type "$2" -o d.gguf
    elif grep -q Gemma4 t.json; then
        kind=assistant
        assistant_config >a.json
        dflash-convert -q a.json --random 6 --type "$2" -o d.gguf
    else
        return
    fi
    verdict $? "$1/$2/$kind, convert" || return
    run plain.i32 t.gguf && drafted "$1/$2/$kind, drafted, width 6" --width 6 --block 6
    run plain.i32 t.gguf --temp 3 --seed 5 --chunk 7 && drafted "$1/$2/$kind, drafted, sampled, block 3, chunk 7" --temp 3 --seed 5 --block 3 --width 3 --chunk 7
    run plain.i32 t.gguf --temp 3 --seed 5 && drafted "$1/$2/$kind, drafted, planned" --temp 3 --seed 5
    saved "$1/$2/$kind, state"
}

caches() { # NAME: quantised caches, keys of each type and values of each, over the last prompt
    local kv
    for kv in q8_0 q5_0,tq3_0 q4_0,q5_0 tq3_0,q4_0 q4_0,f16; do
        kv="--kv $kv --temp 3 --seed 5"
        run plain.i32 t.gguf $kv || { verdict 1 "$1/plain $kv"; continue; }
        drafted "$1/drafted $kv" $kv --width 5 --draft-kv tq3_0,q8_0
        dflash-prefill -q --force -m t.gguf -d d.gguf --device $device ${kv%% --temp*} -o state <$prompt_file &&
            dflash-generate -q -m t.gguf -d d.gguf --state state --temp 3 --seed 5 -n 40 --ignore-eos --device $device >got.i32 && cmp -s got.i32 plain.i32
        verdict $? "$1/state $kv"
    done
}

hosted() { # NAME: over the last prompt, what may lie in the host's memory does: of experts one, half, all but one
    local n f experts
    [ "$device" = cpu ] && return # all memory is the host's
    run plain.i32 t.gguf --temp 3 --seed 5 || { verdict 1 "$1/host, plain"; return; }
    experts=$(number t.json num_experts)
    for n in 1 99; do same "$1/host, caches of $n" plain.i32 t.gguf --temp 3 --seed 5 --kv-host-layers $n; done
    drafted "$1/host, drafted" --temp 3 --seed 5 --kv-host-layers 99 --width 4
    for n in ${experts:+1 $((experts / 2)) $((experts - 1))}; do
        f="--temp 3 --seed 5 --experts-host $n"
        same "$1/host, $n of $experts experts" plain.i32 t.gguf $f
        drafted "$1/host, $n of $experts experts, drafted" $f --width 4
    done
}

odd() { # NAME TYPE
    local name=$1 type=$2 s
    drafter_config "$(number t.json hidden_size)" "$(number t.json num_hidden_layers)" "$(number t.json vocab_size)" 6 4 2 32 96 40 >d.json
    prompt "${PROMPT:-45}" "$(number t.json vocab_size)" 7 >p.i32
    models "$name" "$type" 3 4
    for s in "--temp 0" "--temp 3 --top-k 3 --seed 5"; do
        run plain.i32 t.gguf $s || { verdict 1 "$name/$type/plain $s"; continue; }
        drafted "$name/$type/drafted $s" $s
        # the rest for a float and a block type
        [ "$type" = f32 ] || [ "$type" = q4_k_m ] || continue
        [ "$device" = cpu ] && same "$name/$type/plain $s, scalar, 3 threads" plain.i32 t.gguf $s --isa scalar --threads 3
        [ "$device" = cpu ] || run plain.i32 t.gguf $s --chunk 7
        same "$name/$type/drafted $s, block 3, chunk 7" plain.i32 t.gguf -d d.gguf $s --block 3 --chunk 7
    done
    saved "$name/$type/state"
    rows "$name/$type/rows" 1
    hosted "$name/$type"
    [ "$type" = f32 ] || [ "$type" = q4_k_m ] || return
    dflash2 "$name" "$type"
    own_heads "$name" "$type"
}

real() { # NAME TYPE
    local name=$1 type=$2 s w n
    drafter_config "$(number t.json hidden_size)" "$(number t.json num_hidden_layers)" "$(number t.json vocab_size)" 16 8 2 128 512 256 >d.json
    prompt "${PROMPT:-45}" "$(number t.json vocab_size)" 11 >p.i32
    models "$name" "$type" 2 8
    for s in "--temp 0" "--temp 3 --seed 5"; do
        run plain.i32 t.gguf $s || { verdict 1 "$name/$type/plain $s"; continue; }
        drafted "$name/$type/drafted $s" $s
        for w in $([ "$device" = cpu ] && echo 5 || echo 2 4 9); do drafted "$name/$type/drafted $s, width $w" $s --width $w; done
    done
    saved "$name/$type/state"
    rows "$name/$type/rows" $([ "$device" = cpu ] && echo 1 5 || echo 1 2 3 5 8 9 16 17 33)
    for n in $([ "$device" != cpu ] && echo 1100 9000 || { [ "$type" != q4_k_m ] || echo 600; }); do
        prompt_file=p$n.i32
        prompt "$n" "$(number t.json vocab_size)" 11 >$prompt_file
        run plain.i32 t.gguf $s || { verdict 1 "$name/$type/plain, prompt $n"; continue; }
        for w in 3 16; do drafted "$name/$type/drafted, prompt $n, width $w" $s --width $w; done
        [ "$n" != 1100 ] || rows "$name/$type/rows, prompt $n" 1 7 16
    done
    [ "$type" != q4_k_m ] || caches "$name/$type"
    [ "$type" != q4_k_m ] || hosted "$name/$type"
    [ "$accepted" -ge 20 ]
    verdict $? "$name/$type/proposals are accepted" "$accepted"
    prompt_file=p.i32
    dflash2 "$name" "$type"
    own_heads "$name" "$type"
}

cell() { # KIND NAME TYPE: in a folder of its own
    mkdir -p "$work/$2/$3" && cd "$work/$2/$3" || exit 4
    cp "$root/test/family/$([ "$1" = odd ] || echo real/)$2.json" t.json && "$1" "$2" "$3"
}
[ $# -gt 0 ] || set -- $(cd test/family && ls -- *.json real/*.json | sed 's/\.json$//')
out=()
for name; do
    kind=odd types=${TYPES:-$odd_types}
    [ "${name#real/}" = "$name" ] || kind=real types=${TYPES:-$real_types}
    for type in $types; do
        out+=("$work/${name#real/}-$type.out")
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        (cell $kind "${name#real/}" "$type") >"${out[-1]}" 2>&1 &
    done
done
wait
cat "${out[@]}"
! grep -q '^FAIL ' "${out[@]}"
