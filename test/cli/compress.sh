# Prompts of which tokens are left out: what stays, states of them, what is refused.
t=$DATA/target-bf16.gguf d=$DATA/drafter-bf16.gguf
text=$SRC/data/prompts/python-8-long.txt
head -c 1500 "$text" >p.txt && printf '\n<tools>\n{"name": "find", "parameters": {"key": "text"}}\n</tools>\n' >>p.txt && tail -c +1501 "$text" | head -c 1500 >>p.txt
dflash-tokenize -m "$t" <p.txt >p
n=$(($(stat -c %s p) / 4))
[ "$n" -gt 600 ] || echo "the prompt has $n tokens"
dflash-prefill -q -m "$t" -d "$d" --compress 0.5 --kept kept -o state <p 2>err
sed 's/[0-9][0-9]* of [0-9]*/N of M/' err
k=$(($(stat -c %s kept) / 4))
[ "$k" -le $(((n + 1) / 2)) ] && [ "$k" -gt $((n / 2 - 32)) ] || echo "$k of $n tokens were kept"
# Which they are: ascending, first and last among them, and the declaration of a tool, whole.
od -An -v -t d4 -w4 kept | awk -v n="$n" 'NR > 1 && $1 <= last {bad = 1} {last = $1; seen[$1] = 1}
    END {for (i = 0; i < 32; i++) bad += !seen[i]; for (i = n - 128; i < n; i++) bad += !seen[i]; print bad ? "wrong" : "first and last stay"}'
od -An -v -t d4 -w4 kept | while read -r i; do dd if=p bs=4 skip="$i" count=1 status=none; done >kept.tok
dflash-tokenize -m "$t" --decode <kept.tok | grep -c -e '<tools>$' -e '^{"name": "find", "parameters": {"key": "text"}}$' -e '^</tools>$'
dflash-inspect state | grep -A 2 '^compressed' | sed -e 's/[0-9][0-9]* of [0-9]*/N of M/' -e 's/identity .*/identity/'
dflash-inspect --check state | tail -n 1
dflash-inspect --json state | grep -o "\"compressed\":{\"text_tokens\":$n,\"kept_tokens\":$k,\"keep\":0.5" >/dev/null && echo 'inspect --json says so'
# A function of tokens and flags: by the target's file as scorer, by other chunks and instructions the same.
ln -s "$t" scorer
for f in '--scorer scorer' '--chunk 64 --isa scalar --threads 3'; do
    # shellcheck disable=SC2086
    dflash-prefill -q -m "$t" --compress 0.5 $f --kept again -o s2 --force <p 2>/dev/null && cmp kept again && echo "$f: the same"
done
# Behind the state: drafted is undrafted.
gen() { dflash-generate -q -m "$t" -n 24 --ignore-eos --state "$@" 2>/dev/null; }
for f in '' '--temp 0.8 --seed 3 --repeat-penalty 1.1'; do
    # shellcheck disable=SC2086
    gen state $f >plain
    for x in '--width 3' '--tree 12 --draft-window 40' '--block 4 --lookup on'; do
        # shellcheck disable=SC2086
        gen state -d "$d" $x $f >a && cmp a plain && echo "drafted, $x $f: the same"
    done
done
# A text that goes on: in one piece, in two, behind what was generated.
printf '\7\0\0\0\10\0\0\0\11\0\0\0' >more
gen state --append <more >one
dflash-prefill -q -m "$t" -d "$d" --state state -o s3 <more 2>/dev/null && gen s3 >two && cmp one two && gen s3 -d "$d" >two && cmp one two && echo 'appended: the same'
gen state --save-state s4 --force >a && gen s4 >b && cat a b >ab && dflash-generate -q -m "$t" -n 48 --ignore-eos --state state 2>/dev/null | cmp - ab && echo 'saved and gone on with: the same'
gen state --stats st >a && grep -o '"compressed":{"text_tokens":[0-9]*,"kept_tokens":[0-9]*,"keep":0.5' st | sed 's/[0-9][0-9]*/N/g'
dflash-generate -q -m "$t" -n 1 --state state 2>&1 >a | sed 's/[0-9][0-9]* of [0-9]*/N of M/'
# With nothing left out it is the prompt.
dflash-prefill -q -m "$t" -d "$d" --compress 1 -o whole <p 2>/dev/null
dflash-generate -q -m "$t" -n 24 --ignore-eos <p >plain && gen whole >a && cmp a plain && gen whole -d "$d" >a && cmp a plain && echo 'all kept: the bits of the prompt'
# What is refused.
says() { # status, what stderr holds, flags
    rc=0
    dflash-prefill -m "$t" -o x "${@:3}" <p >out 2>err || rc=$?
    [ "$rc" = "$1" ] && [ ! -e x ] && grep -q -e "$2" err || echo "$*: status $rc: $(cat err)"
}
says 2 '^dflash-prefill: --compress: ' --compress 0
says 2 '^dflash-prefill: --compress: ' --compress 1.01
says 2 '^dflash-prefill: --kept needs --compress KEEP$' --kept x2
says 2 '^dflash-prefill: --scorer needs --compress KEEP$' --scorer "$t"
says 2 'expected no --state, got state' --compress 0.5 --state state
says 2 'expected no --logits' --compress 0.5 --logits l
says 2 '^dflash-prefill: --compress: no pool holds a compressed prompt' --compress 0.5 --pool 448
says 2 'the budget of [0-9]* of [0-9]* tokens is too small for what must stay' --compress 0.1
grep -q '^hint: --compress 0\.[0-9]* would do$' err
says 3 'is a drafter (expected a target' --compress 0.5 --scorer "$d"
cp "$SRC/test/family/real/gemma4-31b.json" g.json && dflash-convert -q g.json --random 3 --type q8_0 -o g.gguf
says 3 'has another vocabulary than the target' --compress 0.5 --scorer g.gguf
head -c 2400 /dev/zero >p
rc=0 && dflash-prefill -q -m g.gguf --compress 0.5 -o x <p 2>err || rc=$?
[ "$rc" = 2 ] && [ ! -e x ] && grep -o 'the target has sliding layers' err
