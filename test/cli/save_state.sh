# Streams that go on: generate --save-state, prefill --state. In pieces the bytes are those of the whole at once, tokens and
# states; a state file is the old one or the new one whatever ends the run; Ctrl-C keeps what was written.
. "$SRC/test/cli/outputs.inc"
for P in "$DATA" "$DATA-hybrid"; do
    T=$P/target-q8_0.gguf D=$P/drafter-q8_0.gguf
    S="--ignore-eos --temp 0.8 --seed 3"
    dflash-tokenize -m "$T" <"$SRC/data/prompts/python-1-short.txt" >p
    dflash-tokenize -m "$T" <"$SRC/data/prompts/manual-1-short.txt" >q
    # three turns: a prompt, its answer in two runs, another prompt
    dflash-generate -q -m "$T" -d "$D" $S -n 37 <p --save-state s >g1
    dflash-generate -q -m "$T" -d "$D" $S -n 21 --state s --save-state s </dev/null >g2
    dflash-generate -q -m "$T" -d "$D" $S -n 58 <p >g
    cat g1 g2 | cmp - g
    cat p g | dflash-prefill -q -m "$T" -d "$D" >whole
    cmp s whole
    dflash-generate -q -m "$T" -d "$D" $S -n 9 --state s --append --save-state s2 <q >g3
    cat p g q | dflash-generate -q -m "$T" $S -n 9 >whole
    cmp g3 whole
    cat p g q g3 | dflash-prefill -q -m "$T" -d "$D" >whole
    cmp s2 whole
    # without a drafter its context ends, and a warning says so
    dflash-generate -q -m "$T" $S -n 9 --state s --append --save-state s3 <q 2>err >whole
    cmp g3 whole
    grep -q 'warning: s3 will hold no context for a drafter, s does' err
    # a stream that ends with its first token; the penalty looks back over the whole history
    dflash-generate -q -m "$T" -d "$D" $S --repeat-penalty 1.3 -n 1 <p --save-state one >g1
    dflash-generate -q -m "$T" -d "$D" $S --repeat-penalty 1.3 -n 20 --state one </dev/null >>g1
    dflash-generate -q -m "$T" $S --repeat-penalty 1.3 -n 21 <p | cmp - g1
    # a prompt in three pieces: state, logits, perplexity
    cat p q g >all
    head -c 44 all >a
    tail -c +45 all | head -c 100 >b
    tail -c +145 all >c
    dflash-prefill -q -m "$T" -d "$D" -o s4 <a
    dflash-prefill -q -m "$T" -d "$D" --state s4 -o s4 <b
    dflash-prefill -q -m "$T" -d "$D" --state s4 -o s5 --logits l --hidden h <c
    dflash-prefill -q -m "$T" -d "$D" -o s6 --logits l0 --hidden h0 <all
    cmp s5 s6
    tail -c "$(stat -c %s l)" l0 | cmp - l
    [ "$(($(stat -c %s h) * $(stat -c %s all)))" = "$(($(stat -c %s h0) * $(stat -c %s c)))" ]
    cat a b | dflash-prefill -q -m "$T" --nll >n1
    dflash-prefill -q -m "$T" --state s4 --nll <c >n2
    dflash-prefill -q -m "$T" --nll <all >n0
    awk '/^tokens/ {n = $2; sum += n} /^nll / {x += n * $2; if (FILENAME == "n0") {whole = n; nll = n * $2; x -= nll; sum -= n}}
        END {if (sum != whole || (x - nll) ^ 2 > 1e-4) print "nll of pieces", x, sum, "of the whole", nll, whole}' n1 n2 n0
    # the prefilled states are other runs' too
    dflash-prefill -q -m "$T" --state s4 <c 2>err | dflash-generate -q -m "$T" --state - -n 9 $S >g1
    grep -q 'warning: the state will hold no context for a drafter, s4 does' err
    dflash-generate -q -m "$T" -n 9 $S <all | cmp - g1
    rm -f s* g* l* h* n? one
done

T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
says() { # STATUS PATTERN COMMAND
    local s=0
    bash -c "$3" >out 2>err || s=$?
    [ "$s" = "$1" ] && grep -q -e "$2" err || echo "$3: status $s: $(cat err)"
}
dflash-prefill -q -m "$T" -d "$D" -o s <p
G="dflash-generate -q -m $T -n 4 --state s"
cp s t
says 2 't: exists already' "$G --save-state t </dev/null"
says 0 '' "$G --save-state t --force </dev/null"
ln s s-too
says 0 'warning: s-too will hold no context' "$G --save-state s-too </dev/null"
cmp -s s s-too && echo "s was written through its other name"
says 2 'same place' "$G --save-state o -o o </dev/null"
says 2 'same file as the input' "$G --save-state $T --force </dev/null"
says 0 'warning: stdin holds data, which is not read: --append' "$G <p"
says 2 'the name is empty' "$G --save-state '' </dev/null"
says 2 'the state must be a file' "dflash-prefill -m $T --state - <s"
says 2 'expected no --imatrix' "dflash-prefill -m $T --state s --imatrix im <p"
says 3 'no context for ' "$G -d $D --state s-too </dev/null"
says 3 'another target' "dflash-prefill -m $DATA/target-bf16.gguf --state s -o o <p"
says 3 'another chunk' "dflash-prefill -m $T --chunk 4 --state s -o o <p"
says 2 'does not fit the context' "dflash-prefill -m $T --ctx 4 --state s -o o <p"
says 3 'the prompt is empty' "dflash-prefill -m $T --state s -o o </dev/null"

# Ctrl-C while it writes: the tokens so far, statistics, and a state that goes on as if nothing had been. The reader of a pipe
# ends by it too.
dflash-generate -q -m "$T" -n 900 --ignore-eos --temp 0.8 --seed 1 <p >whole
for out in "-o o" ">&7"; do
    rm -f o o.* st pipe
    mkfifo pipe
    exec 7<>pipe
    cat <pipe >piped 7>&- &
    reader=$!
    env --default-signal=INT bash -c "exec dflash-generate -m $T -d $D -n 900 --ignore-eos --temp 0.8 --seed 1 --save-state st \
        --stats stats --force $out <p 2>err" &
    pid=$!
    for ((i = 0; i < 3000; i++)); do
        [ -z "$(find . -name 'o.*.tmp' -size +2 -o -name piped -size +2)$(find -L /proc/$pid/fd -links 0 -size +2 2>/dev/null)" ] || break
        sleep 0.01
    done
    kill -INT $pid
    [ "$out" = "-o o" ] || kill $reader
    exec 7<&- # the pipe has no reader from here on
    s=0
    wait $pid || s=$?
    kill $reader 2>/dev/null || true
    wait $reader 2>/dev/null || true
    [ $s = 130 ] || echo "interrupted: status $s: $(cat err)"
    grep -q 'ended by an interrupt' err && grep -q '"stop":"interrupt"' stats || echo "interrupted: $(cat err stats)"
    [ -s o ] || cp piped o
    head -c "$(stat -c %s o)" whole | cmp - o
    n=$(sed -n 's/.*"generated_tokens":\([0-9]*\).*/\1/p' stats)
    cat p <(head -c $((4 * n)) whole) | dflash-prefill -q -m "$T" -d "$D" | cmp - st
    [ "$out" = "-o o" ] && [ "$(stat -c %s o)" != $((4 * n)) ] && echo "interrupted: $n tokens, o has $(stat -c %s o) bytes"
    [ -z "$(ls -A | grep tmp)" ] || echo "interrupted: left behind: $(ls -A)"
done

# A state is the old one or the new one: killed at any time, a second Ctrl-C, a full disk.
rm -f o o.* st*
dflash-prefill -q -m "$T" -o old <p
dflash-generate -q -m "$T" -n 3 --ignore-eos --state old --save-state new </dev/null >o
cp old st
seen=
for ((i = 0; i < 12; i++)); do
    dflash-generate -q -m "$T" -n 3 --ignore-eos --state old --save-state st --force </dev/null >o &
    sleep "0.0$((i / 2))$((i % 2 * 5))"
    { kill -9 $! && wait $!; } 2>/dev/null || true
    if cmp -s st old; then seen="$seen old"; elif cmp -s st new; then seen="$seen new"; else echo "killed: a part of a state"; fi
    cp old st
    for f in st.*; do [ ! -e "$f" ] || cmp "$f" new; done # killed between its two names: whole
    rm -f st.*
done
# Killed while it writes, it leaves nothing: the file has no name yet.
case $(stat -f -c %T .) in
ext2/ext3 | xfs | btrfs | tmpfs)
    mkfifo in
    exec 5<>in
    dflash-prefill -q -m "$T" -o left <in 5>&- &
    await $!
    { kill -9 $! && wait $!; } 2>/dev/null || true
    exec 5>&-
    [ -z "$(ls -A | grep left)" ] || echo "killed: left behind: $(ls -A | grep left)"
    ;;
*) echo "skipped: files without a name, on $(stat -f -c %T .)" >&2 ;;
esac
dflash-generate -q -m "$T" -n 3 --ignore-eos --state old --save-state st --force </dev/null >o
cmp st new
cp old st
try "state past ulimit" 4 "ulimit -f 2; dflash-generate -q -m $T -n 3 --state st --save-state st </dev/null | cat >/dev/null; exit \${PIPESTATUS[0]}"
try "state to /dev/full" 4 "dflash-generate -q -m $T -n 3 --state st --save-state /dev/full </dev/null >/dev/null"
try "prefill past ulimit" 4 "ulimit -f 2; dflash-prefill -q -m $T --state st -o st <p"
cmp st old
echo checked
