# Keys and values of types of their own, layer by layer: drafted as undrafted, resumed as never stopped, and what is refused.
t=$DATA/target-bf16.gguf d=$DATA/drafter-bf16.gguf
dflash-tokenize -m "$t" <"$SRC/data/prompts/python-2-short.txt" >p
run() { dflash-generate -q -m "$t" -n 24 --ignore-eos "$@"; }
same() { # a name, what both runs take, what the drafted ones take too
    name=$1 n=$2
    shift 2
    both=("${@:1:n}") draft=("${@:n+1}")
    run "${both[@]}" <p >plain
    run -d "$d" "${both[@]}" "${draft[@]}" <p >drafted
    dflash-prefill -q -m "$t" -d "$d" "${both[@]}" "${draft[@]}" <p >state
    run -d "$d" --state state >resumed
    run -d "$d" --state state --width 1 >narrow
    cmp plain drafted && cmp plain resumed && cmp plain narrow && echo "$name: the same four times"
}
same 'keys f32, values bf16' 2 --kv f32,bf16
same 'two layers' 4 --kv bf16,f16 --kv-layers 0,2=f32
same 'ends, and the drafter' 6 --kv f16,f32 --kv-layers 'first 1=bf16' --kv-layers 'last 2,1-1=f32,bf16' --draft-kv f32,f16
same 'q8_0' 2 --kv q8_0
same 'quantised, each its own' 6 --kv q8_0,q5_0 --kv-layers 'first 2=q4_0,f16' --kv-layers 'last 1=bf16,q4_0' --draft-kv tq3_0,q8_0
same 'taps' 0 --draft-kv bf16,f32
run -d "$d" --kv-layers taps=f32 <p >a && run -d "$d" --kv-layers taps=f16,f32 --kv-layers taps=f32 <p | cmp - a && echo 'taps: the later counts'
says() { # status, what stderr holds, flags
    rc=0
    run "${@:3}" <p >out 2>err || rc=$?
    [ "$rc" = "$1" ] && [ ! -s out ] && grep -q -e "$2" err || echo "$*: status $rc: $(cat err)"
}
says 2 '^dflash-generate: --kv: cache type not supported (expected f16, bf16, f32, q8_0, q5_0, q4_0 or tq3_0, got q4_1)$' --kv f16,q4_1
says 2 'q4_0 or tq3_0, got )' --kv f16,
says 2 'q4_0 or tq3_0, got f16,f16)' --kv f16,f16,f16
says 2 'q4_0 or tq3_0, got fffffffffffffffffffffffff)' --kv fffffffffffffffffffffffff
says 2 '--kv-layers: expected LIST=K\[,V\], got .f32.' --kv-layers f32
says 2 '--kv-layers: past the last layer (expected N, N-N, taps, donors, sliding, first N or last N, got .99.)' --kv-layers 0,99=f32
says 2 '--kv-layers: no such layers (.* got .2-1.)' --kv-layers 2-1=f32
says 2 "--kv-layers: no drafter reads the target's keys and values (.* got .donors.)" --kv-layers donors=f32
says 2 '--kv-layers: no such layers (.* got ..)' --kv-layers =f32
says 2 "--kv-layers: none of the target's layers with keys and values (.* got .sliding.)" --kv-layers sliding=f32
says 2 "--kv-layers: none of .* got .sliding.)" --kv-layers 0,sliding=f32
says 2 '--kv-layers: there is no drafter (-d DRAFTER) (.* got .taps.)' --kv-layers taps=f32
says 2 '--kv-layers: not a number of layers (.* got .first 0.)' --kv-layers 'first 0=f32'
says 2 '--kv-layers: cache type not supported (.* got q4_k)' --kv-layers 0=q4_k
says 2 'cache of target layer 0: 2 KV heads of 64 as TQ3_0 (expected a head size that 128 divides)' --kv q8_0,tq3_0
says 2 'cache of target layer 3: 2 KV heads of 64 as TQ3_0' --kv-layers 3=tq3_0,f16
says 2 '--draft-kv needs a drafter (-d DRAFTER)' --draft-kv f16
dflash-prefill -q -m "$t" -d "$d" --kv-layers 1=f32,bf16 <p >state
says 3 'another cache type (target layer 0: expected F32, got F16)' -d "$d" --state state --kv f32
says 3 'another cache type (target layer 1: expected F16, got F32,BF16)' -d "$d" --state state --kv-layers 1=f16
says 3 'another cache type (drafter layer 0: expected F16,F32, got F16)' -d "$d" --state state --draft-kv f16,f32
run --state state >a && dflash-generate -q -m "$t" -n 24 --ignore-eos --kv-layers 1=f32,bf16 <p | cmp - a && echo 'without its drafter: the same'
echo checked
