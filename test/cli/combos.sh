# Ways to hold and to run a long context, together: of each set of flags drafted output is undrafted output,
# what is saved and gone on with is what never stopped, a prompt in pieces is the whole, and a state names
# what it was made with. Sets that make no sense are refused.
t=$DATA/target-bf16.gguf d=$DATA/drafter-bf16.gguf
dflash-tokenize -m "$t" <"$SRC/docs/snapshot.md" | head -c 4800 >p # 1,200 tokens
head -c 3072 p >first                                              # 768
tail -c +3073 p >rest
gen() { dflash-generate -q -m "$t" --ignore-eos "$@" 2>err; }
pre() { dflash-prefill -q -m "$t" -d "$d" --force "$@" 2>err; }
same() { cmp "$1" "$2" || echo "$what: $3: $(cat err)"; }
# of flags: a state, and what goes on from it
together() { # whole|pieces, tree|chains, flags
    local pieces=$1 trees=$2 what="${*:3}"
    shift 2
    pre "$@" -o state <p || echo "$what: $(cat err)"
    for f in '' '--temp 0.9 --seed 5'; do
        # shellcheck disable=SC2086
        gen --state state -n 40 $f >plain
        for x in '--width 4' '--block 5 --lookup on' $([ "$trees" = tree ] && echo --tree=14); do
            # shellcheck disable=SC2086
            gen --state state -d "$d" -n 40 $f $x >a
            same plain a "drafted, $x $f"
        done
    done
    # stopped and gone on with: by the drafter, and by the target alone
    gen --state state -n 40 >plain
    gen --state state -d "$d" -n 17 --save-state half >a
    gen --state half -d "$d" -n 23 >b
    cat a b >ab && same plain ab 'saved after 17 tokens, drafted'
    gen --state half -n 23 >b
    cat a b >ab && same plain ab 'saved after 17 tokens, gone on with undrafted'
    rm -f half
    if [ "$pieces" = pieces ]; then
        gen "$@" -n 40 <p >a
        same plain a 'without a state'
        pre "$@" -o part <first && pre --state part -o joined <rest
        same state joined 'in pieces: another state'
    fi
    dflash-inspect --check state >/dev/null || echo "$what: the state is not whole"
    echo "$what: the same"
}
s='--sparse 0.5 --sparse-dense 1'
# shellcheck disable=SC2086
{
    together pieces tree $s --kv q8_0,q4_0 --kv-host-layers 3
    together pieces chains --pool 448 --kv q4_0 --kv-layers 'first 1=bf16'
    together whole tree --compress 0.5 $s --kv-layers 'last 2=f32,bf16'
    together whole tree --compress 0.6 --kv q8_0,q4_0 --kv-host-layers 8
}
# What a state says of all this, and that it goes on with that alone.
pre --compress 0.5 $s --kv q8_0,q4_0 -o state <p
dflash-inspect state | grep -e '^prompts' -e '^compressed' -e '^cache' | sed 's/[0-9]* of [0-9]* /N of M /'
says() { # status, what stderr holds, command
    rc=0
    "${@:3}" <p >out 2>err || rc=$?
    [ "$rc" = "$1" ] && [ ! -s out ] && grep -q -e "$2" err || echo "$*: status $rc: $(cat err)"
}
g() { dflash-generate -q -m "$t" -n 4 --ignore-eos "$@"; }
says 3 'another cache type (target layer 0: expected F16, got Q8_0,Q4_0)' g --state state --kv f16
says 3 'other sparse prompts' g --state state --sparse 0.25
says 2 'a compressed prompt in a pool is not supported' dflash-prefill -m "$t" -o x --compress 0.5 --pool 448
says 2 'beside sparse prompts' g --pool 448 --sparse 0.5
says 2 'beside keys and values in the host' g --pool 448 --kv-host-layers 1
says 2 'beside trees' g --pool 448 -d "$d" --tree 4
says 2 'beside sparse prompts' g --state state --pool 448
pre --compress 0.5 -o state <p
says 3 'made with another pool (expected 448 positions, got 0; 0: none)' g --state state --pool 448
[ ! -e x ] || echo 'something was written'
# Converted only where it is asked for, in a pool, sparse and compressed too; drafted then as undrafted.
for f in '--pool 448' "$s" '--compress 0.5'; do
    # shellcheck disable=SC2086
    pre $f --kv q8_0 -o state <p
    says 3 'another cache type' g --state state --kv f16,q4_0
    gen --state state --kv-convert --kv f16,q4_0 -n 24 >a
    gen --state state --kv-convert --kv f16,q4_0 --draft-kv bf16 -d "$d" -n 24 >b
    cmp a b && echo "$f: converted"
done
