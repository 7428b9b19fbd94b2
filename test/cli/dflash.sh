# The shell program over the others: run, chat, pair.
mkdir tmp
export TMPDIR=$PWD/tmp # where others leave nothing of that name
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
S="--ignore-eos --temp 0.7 --seed 3"
P="def it's(n): # \$HOME \`x\` \"y\" \\n	*"
text() { # FLAGS: by hand
    printf %s "$P" | dflash-tokenize -m "$T" | dflash-generate -q -m "$T" $S -n 40 | dflash-tokenize -m "$T" --decode
}
text >want
dflash run -m "$T" -d "$D" $S -n 40 "$P" >got 2>err
cmp want got
[ "$(cat err)" = "dflash run: cut after 40 tokens (-n N writes more)" ] || cat err
printf %s "$P" | dflash run -q -m "$T" --temp=0.7 --seed 3 -n 40 --ignore-eos >got 2>err
cmp want got
[ ! -s err ] || cat err
# -v prints what can be typed
dflash run -v -m "$T" -d "$D" $S -n 40 -- "$P" >got 2>err
cmp want got
sed -n 's/^+ //p' err >typed
sed -i '2s/|/>mid.tok \&\& cat mid.tok |/' typed
bash -e typed >got 2>err2
cmp want got
grep -q 'dflash-generate: decode: ' err || cat err

# a model with a template: the tokenizer of the tests, random weights
mkdir qwen
sed 's/<|im"/<\/think>"/g; s/<think>\\n\\n/<tool_call>/' "$SRC/test/data/tok_qwen2.json" >qwen/tokenizer.json
echo '{"architectures":["Qwen3ForCausalLM"],"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,
"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"hidden_act":"silu","vocab_size":700,"rms_norm_eps":1e-6,
"rope_theta":1e6,"tie_word_embeddings":true,"max_position_embeddings":32768}' >qwen/config.json
dflash-convert -q qwen --random 1 -o q.gguf
C="--chat-template qwen3 --no-think"
printf 'Be brief.' >sys
chat_ids() { dflash-tokenize -m q.gguf --chat $C --chat-text "$@"; }
# three turns by hand: the whole chat is run anew for every answer
printf 'Hi' | chat_ids --chat-system "$(cat sys)" >all
: >want
n=0
for word in 'It is 5 o'\''clock?' '$x `y` "z"' end; do
    n=$((n + 1))
    dflash-generate -q -m q.gguf --temp 0.9 --seed 3 -n 12 <all >answer
    dflash-tokenize -m q.gguf --decode <answer >>want
    echo >>want
    cat answer >>all
    [ $n = 3 ] || { # every answer is cut or ended as it comes
        dflash-prefill -q -m q.gguf -o st$n <all
        printf '%s' "$word" | chat_ids --continue st$n >more
        cat more >>all
    }
done
printf '%s\n' Hi '' "It is 5 o'clock?" '$x `y` "z"' | dflash chat -m q.gguf $C --chat-system 'Be brief.' --temp 0.9 --seed 3 -n 12 --state kept -q >got
cmp want got
dflash-prefill -q -m q.gguf -o whole <all
cmp whole kept
# a turn a call, the same chat; each runs its own tokens alone
rm kept
for word in Hi "It is 5 o'clock?" '$x `y` "z"'; do
    sys=
    [ -e kept ] || sys=1
    dflash chat -m q.gguf $C ${sys:+--chat-system 'Be brief.'} --temp 0.9 --seed 3 -n 12 --state kept -v "$word" 2>err
    echo
    grep -o 'prefill: [0-9]* tokens' err >>costs
done >got
cmp want got
cmp whole kept
cat costs
dflash run -m q.gguf $C --chat --chat-system 'Be brief.' --temp 0.9 --seed 3 -n 12 Hi >got 2>err
echo >>got
head -n "$(wc -l <got)" want | cmp - got

# Ctrl-C ends an answer, which stays in the chat
: >got # of before, which a child that is late has not emptied yet
env --default-signal=INT setsid dflash chat -m q.gguf $C --state cut --ignore-eos -n 20000 Hi >got 2>err &
pid=$!
for ((i = 0; i < 3000; i++)); do
    [ "$(stat -c %s got)" -lt 200 ] || break
    sleep 0.01
done
kill -INT -$pid
s=0
wait $pid || s=$?
[ $s = 130 ] && [ ! -s err ] || echo "Ctrl-C: status $s: $(cat err)"
dflash-inspect --check cut >out || cat out
dflash-tokenize -m q.gguf --chat $C --chat-text --continue cut <sys | cmp -n 4 - <(printf %s Hi | chat_ids --continue cut)
dflash chat -q -m q.gguf $C --state cut -n 3 more >out
# and the chat goes on, in the one process of its turns
mkfifo words
sed -i 's/"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1/"hidden_size":256,"intermediate_size":1024,"num_hidden_layers":12/' qwen/config.json
dflash-convert -q qwen --random 1 -o slow.gguf
: >got
env --default-signal=INT setsid dflash chat -m slow.gguf $C --state both --ignore-eos -n 1500 -v <words >got 2>err &
pid=$!
exec 9>words
echo Hi >&9
for ((i = 0; i < 3000; i++)); do
    [ "$(stat -c %s got)" -lt 200 ] || break
    sleep 0.01
done
kill -INT -$pid
echo more >&9
exec 9>&-
s=0
wait $pid || s=$?
[ $s = 0 ] && [ "$(grep -c '^+ dflash-generate' err)" = 1 ] && [ "$(grep -c '^+ {' err)" = 2 ] || echo "Ctrl-C in a chat: status $s: $(cat err)"
dflash-inspect --check both >out || cat out
n=$(dflash-inspect both | sed -n 's/.*a state of \([0-9]*\) positions.*/\1/p')
[ "$n" -gt 1550 ] && [ "$n" -lt 3000 ] || echo "$n positions" # the second answer whole, the first not
printf '%s\n' one two | dflash chat -m q.gguf $C --ctx 40 -n 30 --ignore-eos >got 2>err || s=$?
[ $s = 4 ] && grep -q '^dflash chat: context_overflow: does not fit the context of 40' err || cat err
ls -A "$TMPDIR" | grep '^dflash\.' || true >left # none of ours stays

dflash pair "$T" "$D" -n 32 --width 8 --temp 0.7 >out
tail -n 4 out | sed 's/[0-9]*\.[0-9]* a second/N a second/; s/tau .*/tau/'

try() { # COMMAND; folders are not shown
    local s=0
    bash -c "$1" >out 2>err </dev/null || s=$?
    echo "$s $(head -n 1 err | sed "s,$DATA,DATA,")"
}
try "dflash"
try "dflash tell"
try "dflash --tell"
try "dflash run"
try "dflash run -m"
try "dflash run -m $T a b"
try "dflash run -m $T --no-such-flag a"
try "dflash run -m $T --temp"
try "dflash run -m $T --temp x a"
try "dflash run -m $T -o x a"
try "dflash run -m $T --state x a"
try "dflash run -m $T --think a"
try "dflash run -m $T --chat a"
try "dflash run -m none a"
try "dflash run -m $T"
try "dflash chat -m $T a"
try "dflash chat -m q.gguf $C --state kept --chat-system x a"
try "dflash chat -m $T --state kept --chat-template qwen3 a"
try "dflash pair $T"
try "dflash pair -m $T $D"
try "dflash pair $T $T"
try "dflash pair $T ${DATA}-hybrid/drafter-q8_0.gguf --device none"
for v in '' run chat pair; do
    dflash $v --help >help
    dflash $v -h | cmp - help
    s=0
    dflash $v --help >/dev/full 2>err || s=$?
    [ $s = 4 ] || echo "$v: help to a full disk: $s"
    sed -nE 's/^  (-[-a-z]+).*/\1/p' help | while read -r f; do
        grep -qE -- "Fl (.* )?${f#-}( |\$)" "$SRC/docs/dflash.1" || echo "$v: $f is not in the manual page"
    done
done
[ "$(dflash --version)" = "$(dflash-tokenize --version | sed 's/dflash-tokenize/dflash/')" ] || dflash --version
