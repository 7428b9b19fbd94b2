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
# Mixes of types, over tensors as published dynamic files spread them. 8b-dynamic, 27b-dynamic: Q4_K_M with IQ4_XS, Q5_K,
# Q6_K, Q8_0 and F16 among it, alpha and beta in F32; 8b-dynamic-iq: IQ3_XXS with IQ2_XXS and IQ3_S; 27b-gates-TYPE: Q4_K_M with alpha and beta of that type.
mixed=() # flags of the mix called $1
mix() {
    local t
    case $1 in
        8b-dynamic) set -- 'ffn_gate=*[13579]=iq4_xs' 'ffn_up=*[13579]=iq4_xs' 'ffn_down=*[04]=q5_k' 'ffn_down=*[28]=q8_0' \
            'attn_q=*[05]=q5_k' 'attn_k=*[0246]=q8_0' 'attn_v=*[13579]=q8_0' 'attn_v=*0=f16' 'attn_output=*[37]=q8_0' 'attn_output=*5=f16' ;;
        8b-dynamic-iq) set -- 'ffn_gate=*[13579]=iq2_xxs' 'ffn_up=*[13579]=iq2_xxs' 'ffn_down=*[0246]=iq3_s' 'attn_v=*=q5_k' 'attn_output=*[37]=q6_k' ;;
        27b-dynamic) set -- 'ffn_gate=*[13579]=iq4_xs' 'ffn_up=*[13579]=iq4_xs' 'ffn_down=*[04]=q5_k' 'ffn_down=*[28]=q8_0' \
            'attn_qkv=*[05]=q8_0' 'attn_gate=*[28]=q5_k' 'attn_gate=*4=f16' 'ssm_out=*[06]=iq4_xs' 'ssm_alpha=*=f32' 'ssm_beta=*=f32' \
            'attn_q=*1=q5_k' 'attn_k=*=q8_0' 'attn_v=*=q8_0' ;;
        27b-gates-*) set -- "ssm_alpha=*=${1#27b-gates-}" "ssm_beta=*=${1#27b-gates-}" ;;
    esac
    mixed=()
    for t; do # TENSOR=LAYERS=TYPE
        mixed+=(--tensor-type "blk.$(cut -d= -f2 <<<"$t").${t%%=*}.weight=${t##*=}")
    done
}
for name in ${@:-8b-q4_k_m 8b-draft-q8_0 8b-draft-q4_k_m 0.6b-q4_k_m 8b-q8_0 8b-bf16}; do
    mix "$name"
    case $name in
        8b-dynamic) make_one "$name" qwen3-8b q4_k_m "${mixed[@]}" ;;
        8b-dynamic-iq) make_one "$name" qwen3-8b iq3_xxs "${mixed[@]}" ;;
        27b-dynamic | 27b-gates-*) make_one "$name" qwen3.5-27b q4_k_m "${mixed[@]}" ;;
        8b-draft2-*) make_one "$name" qwen3-8b-dflash2 "${name#8b-draft2-}" ;;
        8b-dspark-*) make_one "$name" qwen3-8b-dspark "${name#8b-dspark-}" ;;
        8b-domino-*) make_one "$name" qwen3-8b-domino "${name#8b-domino-}" ;;
        8b-draft-*) make_one "$name" qwen3-8b-dflash "${name#8b-draft-}" ;;
        8b-*) make_one "$name" qwen3-8b "${name#8b-}" ;;
        0.6b-*) make_one "$name" qwen3-0.6b "${name#0.6b-}" ;;
        27b-mtp-*) make_one "$name" qwen3.5-27b "${name#27b-mtp-}" --mtp only ;;
        27b-draft2-*) make_one "$name" qwen3.8-27b-dflash2 "${name#27b-draft2-}" ;;
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
