# The reader of stdout is gone: every program ends by SIGPIPE (141), also where its parent ignores that signal, and leaves
# nothing behind of what it wrote elsewhere.
. "$SRC/test/cli/outputs.inc"
inputs
mkfifo pipe
while IFS='|' read -r name command; do
    case $command in *"-o @"*) ;; *) continue ;; esac
    for before in '' "trap '' PIPE;"; do
        # a write end whose read end was closed: the first write already meets it
        try "$name${before:+ ignored}" 141 "$before exec 3<>pipe 4>pipe 3<&-; ( ${command//-o @/} ) >&4"
    done
done < <(writers)
try "prefill --nll" 141 "exec 3<>pipe 4>pipe 3<&-; dflash-prefill -q -m $T --nll --logits o <p >&4"
try "quantize --json" 141 "exec 3<>pipe 4>pipe 3<&-; dflash-quantize -q $DATA/drafter-bf16.gguf --type q8_0 --json -o o >&4"
try "generate beside" 141 "exec 3<>pipe 4>pipe 3<&-; dflash-generate -q -m $T -d $D -n 9 --stats o --width 8 --draft-trace o2 --draft-logits o3 <p >&4"
try "help" 141 "exec 3<>pipe 4>pipe 3<&-; dflash-bench --help >&4"
echo checked
