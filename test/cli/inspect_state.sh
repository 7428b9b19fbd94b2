# inspect reads states: which models they want, positions, cache types; --check compares every checksum.
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
printf '\5\0\0\0\6\0\0\0\7\0\0\0' >p
dflash-prefill -q -m "$T" -d "$D" -o s <p
dflash-prefill -q -m "$T" --kv-layers 2-3=bf16,f32 --chunk 64 -o mixed <p
dflash-prefill -q -m "$DATA-hybrid/target-q8_0.gguf" -o hybrid <p
dflash-prefill -q -m "$DATA-hybrid/target-q8_0.gguf" --kv-layers 3=f32 -o mixed-hybrid <p
for f in s mixed hybrid mixed-hybrid; do
    echo "== $f"
    dflash-inspect $f | sed 's/[0-9.]* MiB/SIZE/'
    dflash-inspect --check $f
done
dflash-inspect --json s | sed 's/"size_bytes":[0-9]*/"size_bytes":N/'
# the models print the identities that the state has
for f in "$T" "$D"; do
    id=$(dflash-inspect "$f" | sed -n 's/^identity *\([0-9a-f]*\) .*/\1/p')
    dflash-inspect s | grep -c "identity $id"
    dflash-inspect --json "$f" | grep -c "\"kind\":\"identity\",\"identity\":\"$id\""
done
try() { # COMMAND
    s=0
    bash -c "$1" >out 2>err || s=$?
    echo "$s $(grep -v '^{' out | head -n 1) $(head -n 1 err)"
}
head -c 40000 s >cut
try "dflash-inspect --check cut"
cp s bad
printf X | dd of=bad bs=1 seek=30000 conv=notrunc 2>dd
try "dflash-inspect --check bad"
try "dflash-inspect bad"
head -c 100 s >head
try "dflash-inspect head"
try "dflash-inspect --check head"
try "dflash-inspect --tensors s"
try "dflash-inspect --check --for-use s"
try "dflash-generate -m $DATA/target-bf16.gguf --state s -n 1 </dev/null"
try "dflash-generate -m $DATA-hybrid/target-q8_0.gguf --state s -n 1 </dev/null"
