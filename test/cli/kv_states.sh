# A state's types: named, kept, refused by others, and brought into others where that is asked for.
t=$DATA/target-bf16.gguf d=$DATA/drafter-bf16.gguf
dflash-tokenize -m "$t" <"$SRC/data/prompts/python-2-short.txt" >p
gen() { dflash-generate -q -m "$t" -n 24 --ignore-eos "$@"; }
dflash-prefill -q -m "$t" -d "$d" --kv q8_0,q4_0 --kv-layers 'first 1=q5_0' --draft-kv tq3_0,q8_0 -o state <p
dflash-inspect state | grep -i 'cache'
gen --kv q8_0,q4_0 --kv-layers 'first 1=q5_0' <p >plain
gen --state state >a && cmp a plain && gen -d "$d" --state state >a && cmp a plain && echo 'resumed with its own types, without a flag'
says() { # status, what stderr holds, flags
    rc=0
    gen "${@:3}" >out 2>err || rc=$?
    [ "$rc" = "$1" ] && [ ! -s out ] && grep -q -e "$2" err || echo "$*: status $rc: $(cat err)"
}
says 3 'another cache type (target layer 0: expected F16, got Q5_0)' --state state --kv f16
grep -h '^hint' err
says 2 '^dflash-generate: --kv-convert needs --state STATE$' --kv-convert --kv f16
says 2 '^dflash-generate: --kv-convert needs --kv, --kv-layers or --draft-kv$' --kv-convert --state state
# f32 holds exactly what q8_0 held: keys that are stored anew are the same numbers but for a rounding.
dflash-prefill -q -m "$t" -d "$d" --kv q8_0 -o eight <p
printf '\5\0\0\0' >more
dflash-prefill -q -m "$t" -d "$d" --state eight --kv-convert --kv f32 -o wide <more
dflash-inspect wide | grep 'cache'
gen --state wide >a && gen -d "$d" --state wide >b && cmp a b && echo 'converted: drafted as undrafted'
for k in f16 q4_0; do
    gen --state eight --kv-convert --kv $k >a && gen -d "$d" --state eight --kv-convert --kv $k --draft-kv $k,f32 --width 3 >b && cmp a b && echo "to $k: the same"
done
gen --state eight --kv-convert --kv q8_0 >a && gen --state eight | cmp - a && echo 'into its own types: as it was'
# A Gemma: a warning below 8 bits, of any layer; sliding layers by their name; heads of 512 and of 256.
cp "$SRC/test/family/real/gemma4-31b.json" g.json
dflash-convert -q g.json --random 3 --type q8_0 -o g.gguf
printf '\1\0\0\0\0\0\0\0' >ids
warns() { dflash-prefill -q -m g.gguf -o g.state --force "$@" <ids 2>&1 | sed 's/^[^:]*: //'; }
[ -z "$(warns --kv q8_0)" ] && echo 'q8_0: nothing to say'
warns --kv q8_0 --kv-layers sliding=q8_0,q4_0
dflash-inspect g.state | grep cache
warns --kv tq3_0,f16
