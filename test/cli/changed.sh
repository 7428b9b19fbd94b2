# A model that another process changes while it is read: status 4 and no output, whether it grew, shrank below what is still
# read, or was only written to.
. "$SRC/test/cli/outputs.inc"
inputs
mkfifo in full
mkdir d
change() { # NAME HOW COMMAND: COMMAND waits on the FIFO; then the model m.gguf is changed by HOW
    local s=0
    cp "$T" m.gguf
    exec 5<>in
    bash -c "exec $3" 2>err >out <in 5>&- &
    await $!
    sleep 0.3 # the model is loaded when stdin is read; before that, the change is seen all the same
    bash -c "$2"
    printf '\5\0\0\0' >&5
    exec 5>&-
    wait $! || s=$?
    [ "$s" = 4 ] || echo "$1: status $s: $(cat err)"
    grep -q 'm.gguf: \(changed while it was read\|was cut by another process\)' err || echo "$1: $(cat err)"
    [ -z "$(ls -A d)" ] || echo "$1: left behind: $(ls -A d)"
    rm -f d/*
}
for how in 'grew:printf x >>m.gguf' 'shrank:truncate -s -4096 m.gguf' 'touched:touch m.gguf'; do
    change "tokenize, ${how%%:*}" "${how#*:}" "dflash-tokenize -m m.gguf -o d/o"
    change "prefill, ${how%%:*}" "${how#*:}" "dflash-prefill -q -m m.gguf -o d/o --logits d/o2"
    change "generate, ${how%%:*}" "${how#*:}" "dflash-generate -q -m m.gguf -n 2 -o d/o --stats d/o2"
done
# Cut to nothing in the middle of a pass over it: held by a stderr that takes no more.
cp "$DATA/target-f32.gguf" m.gguf
exec 6<>full
head -c 65536 /dev/zero >&6
s=0
dflash-quantize m.gguf --type q8_0 -o d/o 2>full &
await $!
sleep 0.2
truncate -s 0 m.gguf
head -c 65536 <&6 >/dev/null
wait $! || s=$?
[ "$s" = 4 ] || echo "quantize, cut: status $s"
printf '\n' >&6
timeout 5 grep -q -m1 'm.gguf: \(changed while it was read\|was cut by another process\)' <&6 || echo "quantize, cut: another message"
[ -z "$(ls -A d)" ] || echo "quantize, cut: left behind: $(ls -A d)"
# A list that is being printed: held by a pipe that takes no more.
for how in 'grew:printf x >>m.gguf' 'touched:touch m.gguf'; do
    cp "$DATA/target-f32.gguf" m.gguf
    exec 6<>full
    head -c 65536 /dev/zero >&6
    s=0
    dflash-inspect --tensors --json m.gguf >full 2>err &
    until grep -q m.gguf "/proc/$!/maps"; do sleep 0.01; done
    bash -c "${how#*:}"
    head -c 65536 <&6 >/dev/null
    wait $! || s=$?
    exec 6<&-
    [ "$s" = 4 ] && grep -q 'm.gguf: changed while it was read' err || echo "inspect, ${how%%:*}: status $s: $(cat err)"
done
# The same for a checkpoint.
cp -r "$SRC/data/pair/drafter" hf
dflash-convert -q hf -o d/o --type f32 &
await $!
touch hf/model.safetensors
s=0
wait $! || s=$?
[ "$s" = 4 ] || [ "$s" = 0 ] || echo "convert, touched: status $s" # 0: it was done already
[ "$s" = 0 ] || [ -z "$(ls -A d)" ] || echo "convert, touched: left behind: $(ls -A d)"
echo checked
