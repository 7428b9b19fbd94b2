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
pair 1 taps "$T" "$D" --taps 1,2,3,4,8 --tap-shift 0
pair 1 'mask id' "$T" "$D" --mask-id 4096
pair 0 rope "$T" "$D" --rope-theta 10000000
pair 0 head "$DATA/target-q8_0.gguf" "$D"
dflash-quantize -q "$DATA/target-f32.gguf" -o q4.gguf --type q4_0
pair 0 head q4.gguf "$D"
dflash-convert -q "$SRC/test/family/llama.json" --random 1 -o llama.gguf
pair 1 'rope scaling' llama.gguf "$D"
pair 0 causality "$T" "$DATA/dialects/ik.gguf"
pair 1 roles "$D" "$T"
rc=0
dflash-inspect --json --pair "$T" "$D" --mask-id 4096 >out || rc=$?
echo $rc
grep -E '"mask id"|verdict' out
