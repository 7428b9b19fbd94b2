# Experts and caches in the host's memory: on the CPU the flags are read, checked and do nothing; what is refused.
M="-m t.gguf --device cpu"
dflash-convert -q $SRC/test/family/qwen3moe.json --random 3 --type f32 -o t.gguf
for i in $(seq 20); do printf "\\x0$((i * i % 4))\\0\\0\\0"; done >p
fails() { # STATUS COMMAND...: its last line
    local want=$1 got=0
    shift
    "$@" <p >o 2>err || got=$?
    [ $got = $want ] || echo "status $got:"
    tail -n 1 err
}
dflash-prefill -q $M --imatrix im <p
dflash-generate -q $M -n 12 --ignore-eos <p >plain
for f in "--experts-host 3" "--experts-host 6 --experts-counts im" --kv-host "--kv-host-layers 2"; do
    dflash-generate -q $M -n 12 --ignore-eos --stats s --force $f <p 2>err >o
    cmp o plain
    cat err
    grep -o '"experts_host":[0-9]*,"kv_host_layers":[0-9]*,"host_bytes":[0-9]*' s
done
grep -o '"kv_host":[a-z]*,"kv_host_layers":[0-9]*,"experts_host":[0-9]*,"experts_counts":[a-z]*' s
dflash-bench rows -q $M --rows 1 --prompts 9 --context 9 --rounds 1 --experts-host 2 2>/dev/null |
    grep -o '"experts_host":[0-9]*,"experts_host_bytes":[0-9]*\|"host_bytes":[0-9]*,"link_bytes_per_s":[a-z]*,"floor_host_s":[0-9.]*'
fails 2 dflash-generate $M -n 4 --experts-host 7
fails 2 dflash-generate -m $DATA/target-bf16.gguf -n 4 --experts-host 1 --device cpu
fails 2 dflash-generate $M -n 4 --experts-counts im
fails 2 dflash-generate $M -n 4 --experts-host -1
fails 2 dflash-prefill $M -o s2 --kv-host-layers 9999
fails 4 dflash-generate $M -n 4 --experts-host 1 --experts-counts nothing
fails 3 dflash-generate $M -n 4 --experts-host 1 --experts-counts t.gguf
dflash-prefill -q -m $DATA/target-q8_0.gguf --device cpu --imatrix other <p
fails 3 dflash-generate $M -n 4 --experts-host 1 --experts-counts other
# a pool: one stream plain, drafted and from a state, which names it
P="-m $DATA/target-q8_0.gguf --device cpu"
dflash-tokenize -m $DATA/target-q8_0.gguf <$SRC/data/prompts/python-8-long.txt 2>/dev/null | head -c 3200 >long
head -c 2000 long >first
tail -c +2001 long >rest
dflash-generate -q $P --pool 448 -n 60 --ignore-eos <long >want
dflash-generate -q $P -d $DATA/drafter-q8_0.gguf --pool 448 -n 60 --ignore-eos --stats s --force <long | cmp - want
grep -o '"pool_turns":[0-9]*' s
dflash-prefill -q $P -d $DATA/drafter-q8_0.gguf --pool 448 -o state <first
dflash-generate -q $P -d $DATA/drafter-q8_0.gguf --state state --append -n 60 --ignore-eos --stats s --force <rest | cmp - want
grep -o '"pool":[0-9]*' s
dflash-inspect state | grep pool
dflash-inspect --check state | tail -n 1
dflash-generate -q $P -n 60 --ignore-eos <long >dense
dflash-generate -q $P --pool 1024 -n 60 --ignore-eos <long | cmp - dense
fails 3 dflash-generate -q $P --state state --pool 512 -n 4
fails 3 dflash-generate -q $P --state state --pool 0 -n 4
fails 2 dflash-generate -q $P --pool 400 -n 4
fails 2 dflash-generate -q $P -d $DATA/drafter-q8_0.gguf --pool 448 --tree 4 -n 4
fails 2 dflash-generate -q $P --pool 448 --kv-host-layers 1 -n 4
fails 2 dflash-prefill -q $P --pool 448 --imatrix im
head -n 1 err
