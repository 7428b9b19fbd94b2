# Two trained drafters at once, DFlash and the target's MTP block, chosen by plans: of every set of flags what is drafted is
# what is not; a state of both goes on with both, with either and with none; what is saved half-way goes on as if it had not been.
dflash-convert -q "$SRC/data/pair-hybrid/target" -o t.gguf --type q8_0
dflash-convert -q "$SRC/data/pair-hybrid/drafter" -o d.gguf --type q8_0 --target t.gguf
dflash-convert -q "$SRC/data/pair-hybrid/mtp" -o m.gguf --type q8_0 --mtp only
dflash-tokenize -m t.gguf <"$SRC/data/prompts/python-4-medium.txt" >p
gen() { dflash-generate -q -m t.gguf --ignore-eos "$@" 2>err; }
both='-d d.gguf --mtp m.gguf'
cycles=0 accepted=0
for f in '' '--temp 0.8 --seed 5' '--temp 1.1 --top-p 0.9 --repeat-penalty 1.1 --seed 6'; do
    # shellcheck disable=SC2086
    gen -n 64 $f <p >plain
    for x in '' '--tree auto' '--lookup on' '--tree auto --lookup on --mtp-block 6' '--block 4' '--draft-sampling greedy'; do
        # shellcheck disable=SC2086
        gen $both -n 64 $f $x --stats s --force <p >a
        cmp plain a || echo "$x $f: $(cat err)"
        cycles=$((cycles + $(grep -o '"cycles":[0-9]*' s | head -n 1 | cut -d: -f2)))
        accepted=$((accepted + 64))
    done
    # shellcheck disable=SC2086
    for g in "$both" '-d d.gguf' '-d m.gguf' ''; do
        dflash-prefill -q -m t.gguf $both -o state --force <p
        gen --state state $g -n 64 $f --force >a
        cmp plain a || echo "resumed $g $f: $(cat err)"
        gen $both -n 23 $f --tree auto --save-state half --force <p >a
        gen --state half $g -n 41 $f --force >b
        cat a b | cmp - plain || echo "half $g $f: $(cat err)"
    done
done
[ $((accepted * 10)) -gt $((cycles * 15)) ] || echo "$cycles cycles for $accepted tokens"
echo "as plain"
