# A full disk in three forms: /dev/full, the limit on file sizes, a small tmpfs (as root, where one can be mounted). Status 4,
# a message, and no file under the name nor beside it.
. "$SRC/test/cli/outputs.inc"
inputs
while IFS='|' read -r name command; do
    try "$name to /dev/full" 4 "${command//@//dev/full}"
    case $command in
    *"-o @"*) try "$name to stdout on /dev/full" 4 "set -o pipefail; ( ${command//-o @/} ) >/dev/full" ;;
    esac
    # limits count blocks of 1024: the smallest outputs are below one
    case $name in bench-* | tokenize | decode | generate | generate-stats | generate-trace) continue ;; esac
    try "$name past ulimit -f" 4 "ulimit -f 2; ${command//@/o}"
done < <(writers)
try "prefill --nll to /dev/full" 4 "dflash-prefill -q -m $T --nll <p >/dev/full"
try "quantize --json to /dev/full" 4 "dflash-quantize -q $DATA/drafter-bf16.gguf --type q8_0 --json -o o >/dev/full"
try "prefill --nll --logits to /dev/full" 4 "dflash-prefill -q -m $T --nll --logits o <p >/dev/full"
try "help to /dev/full" 4 "dflash-convert --help >/dev/full"
# The second of two outputs fails: the first does not stay either.
try "generate -o beside --draft-logits past ulimit" 4 "ulimit -f 2; dflash-generate -q -m $T -d $D -n 9 --ignore-eos -o o --width 8 --draft-trace o2 --draft-logits o3 <p"
try "prefill -o beside --logits past ulimit" 4 "ulimit -f 20; head -c 4 p >p1; dflash-prefill -q -m $T -o o --logits o2 <p1; s=\$?; rm p1; exit \$s"
mkdir small
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=16k none small 2>/dev/null; then
    trap 'umount small' EXIT
    while IFS='|' read -r name command; do
        case $name in bench-* | tokenize | decode | generate | generate-stats | generate-trace | inspect | inspect-json) continue ;; esac
        try "$name to a full tmpfs" 4 "${command//@/small/o}"
        [ -z "$(ls -A small)" ] || echo "$name: left in the tmpfs: $(ls -A small)"
        rm -f small/*
    done < <(writers)
fi
echo checked
