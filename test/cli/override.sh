# Keys with other values than the file's: a run with --override-kv is a run of a file copied with it, states included; what is
# not known, of another type or out of range is refused; inspect --diff tells keys.
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
K=qwen3.rope.freq_base=float:50000
head -c 300 "$SRC/data/prompts/python-1-short.txt" | dflash-tokenize -m "$T" >p
dflash-quantize -q "$T" --type copy --override-kv $K --override-kv general.author=str:somebody --override-kv general.author=str:x -o e.gguf
dflash-quantize -q "$T" --type copy --override-kv general.author=str:x --override-kv $K -o f.gguf
cmp e.gguf f.gguf && echo "order in the file, not of the flags"
dflash-inspect --diff "$T" e.gguf
dflash-inspect --diff --json e.gguf "$T" | sed -n '/"kind":"key"/p'
dflash-inspect --diff --strict "$T" e.gguf >no || echo "strict: $?"
dflash-inspect --diff --strict "$T" "$T" | head -n 1
dflash-quantize -q "$T" --type copy --override-kv $K --force -o e.gguf
for dr in "" "-d $D"; do
    dflash-generate -q -m "$T" $dr -n 40 --ignore-eos <p >plain
    dflash-generate -q -m "$T" $dr -n 40 --ignore-eos --override-kv $K --stats s.json <p >over
    dflash-generate -q -m e.gguf $dr -n 40 --ignore-eos <p >copied
    cmp over copied
    cmp -s plain over && echo "the base changed nothing"
done
grep -o '"override_kv":[^]]*]' s.json
dflash-prefill -q -m "$T" -d "$D" --override-kv $K -o s1 <p
dflash-prefill -q -m e.gguf -d "$D" -o s2 <p
cmp s1 s2 && echo "one state"
dflash-prefill -q -m "$T" -d "$D" --override-kv qwen3.rope.freq_base=f32:1000000 <p | cmp - <(dflash-prefill -q -m "$T" -d "$D" <p) && echo "the file's own value"
dflash-generate -q -m "$T" -d "$D" --override-kv $K --state s1 -n 40 --ignore-eos </dev/null | cmp - over
dflash-bench run -q -m "$T" --override-kv $K -n 2 --runs 1 --warmup 0 --ignore-eos p | grep -o '"override_kv":[^]]*]'

no() { # KEY=TYPE:VALUE
    local s=0
    dflash-generate -q -m "$T" --override-kv "$1" -n 1 <p >no 2>err || s=$?
    echo "$s: $(head -n 1 err | sed "s|$DATA/||g; s/^dflash-generate: //")"
}
no qwen3.rope.freq_bas=float:3
no qwen3.rope.freq_base=int:3
no qwen3.rope.freq_base=f64:3
no qwen3.rope.freq_base=float:1e99
no qwen3.rope.freq_base=float:nan
no qwen3.rope.freq_base=float:
no qwen3.block_count=int:9
no qwen3.block_count=int:-1
no qwen3.block_count=int:4294967296
no qwen3.block_count=int:18446744073709551616
no qwen3.block_count=u16:8
no general.nam=str:x
no general.architecture=str:qwen9
no tokenizer.ggml.tokens=str:x
no tokenizer.ggml.add_bos_token=bool:1
no split.no=int:3
no general.alignment=int:64
no a=b
no a=what:3
no =int:3
s=0
dflash-generate -q -m "$T" --state s1 -n 1 </dev/null >no 2>err || s=$?
echo "$s: $(sed 's/identity [0-9a-f]\{8\}/identity ID/g; s/^[^ ]* //' err | tr '\n' ' ')"
dflash-inspect --check "$T" --override-kv qwen3.block_count=int:7 | sed -n "s|$DATA/||g; /^BAD/p; \$p"
dflash-inspect --check "$T" --override-kv qwen3.block_count=int:8 | tail -n 1
dflash-inspect --pair "$T" "$D" --override-kv qwen3.rope.freq_base=float:5 | tail -n 1
dflash-inspect "$T" --override-kv a=int:3 2>&1 | head -n 1
