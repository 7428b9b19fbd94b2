# inspect --pair on the trained pair: well, and with each kind of trouble that its files can show. (The rest: test_doctor.c.)
pair() { # STATUS SUBJECT ARGS...: the lines of a subject, and the verdict
    want=$1 subject=$2 rc=0
    shift 2
    dflash-inspect --pair "$@" >out || rc=$?
    [ $rc = "$want" ] || echo "$*: exit status $rc"
    grep -A1 -E "^(ok|note|misfit) +$subject:" out | grep -vE '^(--|ok )' | sed "s|$DATA|DATA|g" || true
    tail -n 1 out
}
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
pair 0 taps "$T" "$D"
pair 0 'tap shift' "$T" "$D" --taps 2,3,4,5,6
pair 0 'tap shift' "$T" "$D" --taps 0,1,2,3,4
pair 0 'tap shift' "$T" "$D" --taps 1,2,3,4,5
pair 1 taps "$T" "$D" --taps 1,2,3,4,8
pair 1 taps "$T" "$D" --taps 1,2,3,4,8
pair 1 'mask id' "$T" "$D" --mask-id 4096
pair 0 rope "$T" "$D" --rope-theta 10000000
pair 0 head "$DATA/target-q8_0.gguf" "$D"
dflash-quantize -q "$DATA/target-f32.gguf" -o q4.gguf --type q4_0
pair 0 head q4.gguf "$D"
dflash-convert -q "$SRC/test/family/llama.json" --random 1 -o llama.gguf
pair 1 'rope scaling' llama.gguf "$D"
pair 0 causality "$T" "$DATA/dialects/ik.gguf"
pair 1 roles "$D" "$T"
# the mask's embedding row, id 1, zeroed in the target's file; then other windows, blocks and taps than it was trained with
cp "$DATA/target-f32.gguf" zero.gguf
row() { dflash-inspect --tensors --json "$1" | sed -n 's/.*"name":"token_embd.weight".*"shape":\[\([0-9]*\),\([0-9]*\)\],"offset_bytes":\([0-9]*\),.*/\2 \3/p'; }
read -r width offset < <(row zero.gguf)
data=$(($(stat -c %s zero.gguf) - $(dflash-inspect --tensors --json zero.gguf | sed -n 's/.*"offset_bytes":\([0-9]*\),"size_bytes":\([0-9]*\).*/\1 \2/p' | awk '{ e = $1 + $2; m = e > m ? e : m } END { print int((m + 31) / 32) * 32 }')))
dd if=/dev/zero of=zero.gguf bs=1 seek=$((data + offset + 4 * width)) count=$((4 * width)) conv=notrunc status=none
pair 1 'mask id' zero.gguf "$D"
pair 0 inferred "$T" "$D" --sliding-window 16 --sliding-pattern sfff
pair 0 'block size' "$T" "$D" --block-size 5
pair 1 drafter "$T" "$D" --taps 1,2,3
# a base model under a drafter of the instruct model: the drafter's copy has another end of text and a chat template
mkdir instruct
cp "$SRC"/data/pair/target/* instruct/
printf '{"chat_template":"{{ messages }}"}' >instruct/tokenizer_config.json
sed -i 's/"eos_token_id": *[0-9]*/"eos_token_id": 1/' instruct/*config.json
dflash-convert -q "$SRC/data/pair/drafter" --target instruct --type q8_0 -o instruct.gguf
pair 0 'special tokens' "$T" instruct.gguf
pair 0 'chat template' "$T" instruct.gguf
# relatives, each named
for f in "$DATA"/dialects/relative-*.gguf; do
    dflash-inspect --pair "$T" "$f" >out || echo "$? $(grep -E '^misfit +(kind|drafter):' out | sed "s|$DATA|DATA|g; s/, found.*//")"
done
rc=0
dflash-inspect --json --pair "$T" "$D" --mask-id 4096 >out || rc=$?
echo $rc
grep -E '"mask id"|verdict' out
