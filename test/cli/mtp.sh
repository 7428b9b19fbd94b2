# The block of a Qwen3.5 file that predicts further tokens: kept, apart, left out; as a drafter, in states, misused.
config=$SRC/data/pair-hybrid/target/config.json
dflash-convert -q "$config" --random 3 --type q8_0 --mtp keep -o both.gguf
dflash-convert -q "$config" --random 3 --type q8_0 --mtp only -o mtp.gguf
dflash-convert -q "$config" --random 3 --type q8_0 -o none.gguf
seq 1 60 | awk '{ printf "%c%c%c%c", $1 * 4 % 120 + 1, 0, 0, 0 }' >p.tok
dflash-generate -q -m none.gguf -n 24 --ignore-eos <p.tok >plain.tok
for d in "both.gguf -d target" "both.gguf -d mtp.gguf" "none.gguf -d mtp.gguf" "both.gguf -d both.gguf"; do
    for more in "" "--width 6 --block 6" "--temp 0.8 --seed 4"; do
        # shellcheck disable=SC2086
        dflash-generate -q -m $d $more -n 24 --ignore-eos <p.tok >drafted.tok
        # shellcheck disable=SC2086
        [ -z "${more##*temp*}" ] && dflash-generate -q -m none.gguf $more -n 24 --ignore-eos <p.tok >sampled.tok && cmp sampled.tok drafted.tok && continue
        cmp plain.tok drafted.tok
    done
done
# A key of the file is the block's too, by whatever path it is named.
for d in target both.gguf ./both.gguf; do
    dflash-generate -q -m both.gguf -d $d --override-kv qwen35.rope.freq_base=float:12345 --width 4 --draft-trace t.${d##*/} --stats key -n 24 --ignore-eos <p.tok >/dev/null
    cmp t.target t.${d##*/}
done
dflash-generate -q -m both.gguf -d target --tree 9 --block 6 -n 24 --ignore-eos <p.tok | cmp - plain.tok
echo "drafted as plain"
dflash-prefill -q -m both.gguf -d target -o s.state <p.tok
dflash-generate -q -m both.gguf -d target --width 4 --draft-trace whole.trace -n 24 --ignore-eos <p.tok >/dev/null
dflash-generate -q -m both.gguf -d target --width 4 --draft-trace resumed.trace -n 24 --ignore-eos --state s.state >resumed.tok
cmp plain.tok resumed.tok
cmp whole.trace resumed.trace
dflash-inspect --check s.state | tail -n 1
dflash-inspect s.state | grep "last hidden state"
dflash-inspect --pair both.gguf target | tail -n 1
ln both.gguf too.gguf
for d in both.gguf ./both.gguf too.gguf; do # one file: what overrides its keys does so of both
    dflash-inspect --pair both.gguf $d --override-kv qwen35.rope.freq_base=float:12345 | grep -q 'theta 12345, as the target' || echo "$d: another theta"
done
dflash-inspect --pair both.gguf mtp.gguf | tail -n 1
dflash-inspect mtp.gguf | grep ^drafter
dflash-quantize -q mtp.gguf -o small.gguf --type q4_k_m 2>/dev/null
dflash-generate -q -m none.gguf -d small.gguf -n 24 --ignore-eos <p.tok | cmp - plain.tok
refused() { # STATUS COMMAND...: its last line
    local want=$1 got=0
    shift
    "$@" <p.tok >/dev/null 2>err || got=$?
    [ "$got" = "$want" ] || { echo "exit $got: $*" && cat err && exit 9; }
    grep -Ev '^(hint|try)' err | tail -n 1 | sed "s#$SRC/##"
}
refused 3 dflash-generate -m none.gguf -d target -n 2
refused 3 dflash-generate -m mtp.gguf -n 2
refused 3 dflash-generate -m "$DATA/target-q8_0.gguf" -d mtp.gguf -n 2
refused 2 dflash-generate -m both.gguf -d target --draft-taps 1 -n 2
refused 2 dflash-generate -m both.gguf -d target --block 65 -n 2
refused 3 dflash-generate -m both.gguf -d mtp.gguf --state s.state -n 2
refused 2 dflash-convert "$SRC/data/pair/target" --mtp keep -o x.gguf
refused 2 dflash-convert "$config" --random 1 --mtp some -o x.gguf
refused 3 dflash-convert "$SRC/data/pair-hybrid/target" --mtp only -o x.gguf
# Beside another drafter: whoever proposes, the stream is one; a state of both goes on with both, with one, with none.
dflash-convert -q "$SRC/data/pair-hybrid/drafter/config.json" --random 5 --type q8_0 --target none.gguf -o taps.gguf
dflash-generate -q -m none.gguf -d taps.gguf --mtp mtp.gguf --mtp-block 40 -n 24 --ignore-eos <p.tok | cmp - plain.tok # room for the longer block
for m in target mtp.gguf; do
    for more in "" "--tree auto" "--temp 0.8 --seed 4 --mtp-block 6"; do
        # shellcheck disable=SC2086
        dflash-generate -q -m both.gguf -d taps.gguf --mtp $m $more -n 24 --ignore-eos <p.tok >drafted.tok
        # shellcheck disable=SC2086
        case $more in *temp*) cmp sampled.tok drafted.tok ;; *) cmp plain.tok drafted.tok ;; esac
    done
done
dflash-prefill -q -m none.gguf -d taps.gguf --mtp mtp.gguf -o two.state <p.tok
dflash-inspect --check two.state | tail -n 1
dflash-inspect two.state | grep -E "taps|last hidden"
for d in "-d taps.gguf --mtp mtp.gguf" "-d taps.gguf" "-d mtp.gguf" ""; do
    # shellcheck disable=SC2086
    dflash-generate -q -m none.gguf $d -n 24 --ignore-eos --state two.state | cmp - plain.tok
done
echo "two as plain"
for c in "dflash-prefill -q -m none.gguf -d taps.gguf --state two.state -o one.state" "dflash-generate -q -m none.gguf -d mtp.gguf --state two.state --save-state one.state -n 1"; do
    rm -f one.state
    $c <p.tok 2>err >/dev/null
    grep hold err | grep -v stdin
done
refused 2 dflash-generate -m both.gguf --mtp target -n 2
refused 2 dflash-generate -m both.gguf -d taps.gguf --mtp-block 4 -n 2
refused 2 dflash-generate -m both.gguf -d taps.gguf --mtp target --width 4 -n 2
refused 2 dflash-generate -m both.gguf -d taps.gguf --mtp target --tree 7 -n 2
refused 2 dflash-generate -m both.gguf -d taps.gguf --mtp target --draft-trace x -n 2
refused 2 dflash-generate -m both.gguf -d target --mtp mtp.gguf -n 2
refused 3 dflash-generate -m none.gguf -d taps.gguf --mtp target -n 2
refused 3 dflash-generate -m both.gguf -d taps.gguf --mtp taps.gguf -n 2
refused 3 dflash-generate -m none.gguf -d taps.gguf --mtp mtp.gguf --state s.state -n 2
refused 2 dflash-bench calibrate -m both.gguf -d taps.gguf --mtp target -n 2 p.tok
