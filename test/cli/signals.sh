# SIGINT, SIGTERM and SIGHUP while an output is being written: the program ends by the signal, nothing has the output's name,
# and nothing is beside it. Each program is held where its output is open: by an input that does not end, a stderr that
# takes no more, or an output so large that it cannot be done yet.
. "$SRC/test/cli/outputs.inc"
inputs
mkfifo in full
exec 5<>in 6<>full
head -c 65536 /dev/zero >&6 # all that a pipe holds
printf '\5\0' >&5
mkdir d
cut() { # NAME SIGNAL COMMAND: outputs go to d
    local s=0 i
    # a shell's background jobs ignore SIGINT, and what nohup starts SIGHUP; env undoes that
    env --default-signal=INT,TERM,HUP bash -c "exec $3" 2>err >out &
    for ((i = 0; i < 3000; i++)); do
        [ "$(written $!)" = 0 ] || break
        sleep 0.01
    done
    [ "$i" -lt 3000 ] || echo "$1 $2: no temporary in time"
    kill "-$2" $!
    wait $! || s=$?
    [ "$s" = $((128 + $(kill -l "$2"))) ] || echo "$1 $2: status $s: $(cat err)"
    [ -z "$(ls -A d)" ] || echo "$1 $2: left behind: $(ls -A d)"
    rm -f d/*
}
for signal in INT TERM HUP; do
    cut tokenize $signal "dflash-tokenize -m $T -o d/o <in"
    cut decode $signal "dflash-tokenize -m $T --decode -o d/o <in"
    cut prefill $signal "dflash-prefill -q -m $T -o d/o --logits d/o2 <in"
    cut generate $signal "dflash-generate -q -m $T -d $D -n 4 -o d/o --stats d/o2 --width 8 --draft-trace d/o3 --draft-logits d/o4 --save-state d/o5 <in"
    cut generate-state $signal "dflash-generate -q -m $T --state - -n 4 -o d/o <in"
    cut bench-run $signal "dflash-bench run -q -m $T in -o d/o"
    cut bench-compare $signal "dflash-bench compare in p -o d/o"
    cut bench-report $signal "dflash-bench report - -o d/o <in"
    cut quantize $signal "dflash-quantize $DATA/drafter-bf16.gguf --type q8_0 -o d/o 2>full"
    cut convert $signal "dflash-convert -q $SRC/data/configs/qwen3-0.6b.json --random 1 --type q4_k_m -o d/o"
done
echo checked
