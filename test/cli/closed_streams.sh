# Started with standard streams closed, as some supervisors do: no file opened later takes their numbers, so messages do not go into
# an output and no model is read as the prompt. What is written is what is written with them open.
. "$SRC/test/cli/outputs.inc"
inputs
while IFS='|' read -r name command; do
    case $name in bench-rows | generate-stats) continue ;; esac # times
    command=${command/ -q/}
    good=${command//@/good} bad=${command//@/bad}
    bash -c "$good" </dev/null >/dev/null 2>&1 || echo "$name: status $?"
    for closed in '2>&-' '>&- 2>&-'; do
        rm -f bad
        bash -c "exec $closed; $bad" </dev/null || echo "$name $closed: status $?"
        cmp good bad || echo "$name $closed: differs"
    done
    rm -f good
done < <(writers)
# several outputs, and many messages
rm -f bad
dflash-generate -v -m $T -d $D -n 40 --ignore-eos -o good <p 2>/dev/null
dflash-generate -v -m $T -d $D -n 40 --ignore-eos -o bad --stats stats <p 2>&-
cmp good bad
[ "$(wc -l <stats)" = 1 ] && [ "$(tail -c 2 stats)" = '}' ] || echo "stats: $(tail -n 1 stats)"
# nothing to read: an error, and nothing written
for c in "prefill -m $T -o o" "generate -m $T -n 4 -o o" "tokenize -m $T -o o" "tokenize -m $T --decode -o o" "generate -m $T -n 4 --state - -o o" "bench report -"; do
    try "$c, closed stdin" 4 "dflash-$c <&-"
    grep -q 'stdin: cannot read: Bad file descriptor' err || echo "$c: $(cat err)"
done
# nowhere to write
for c in "prefill -m $T <p" "generate -m $T -n 4 <p" "tokenize -m $T <text" "convert $D" "inspect $T" "bench report cell"; do
    try "$c, closed stdout" 4 "dflash-$c >&-"
    grep -q 'stdout: cannot write: Bad file descriptor' err || echo "$c: $(cat err)"
done
echo checked
