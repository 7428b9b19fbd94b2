# The needle suite on the model that is kept for it: dense prompts, and sparse ones of all blocks, find what they should; a coarse
# cache loses; prompts that see their ends alone are found out; the same prompts from the same seed.
dflash-convert -q "$SRC/data/needles" -o n.gguf --type bf16
suite() { # a name, a status, flags
    rc=0
    dflash-bench needles -q -m n.gguf --length 1024 --cases 8 "${@:3}" >out || rc=$?
    [ "$rc" = "$2" ] || echo "$1: status $rc, expected $2"
    sed 's/.*"task":"\([a-z]*\)".*"passed":\([a-z]*\),"blind":\([a-z]*\).*/\1 \2 \3/' out | sort | uniq -c | while read -r _ task ok blind; do
        echo "$1: $task passed $ok, blind $blind"
    done
}
suite dense 0 --dense-least 0.85
suite 'sparse 0' 0 --sparse 0 --sparse-dense 0 --tasks records,values
suite 'sparse 1000' 1 --sparse 1000 --sparse-dense 0 --tasks records
suite q8_0 0 --kv q8_0 --tasks records,keys,chains
suite 'compress 0.4' 0 --length 2048 --compress 0.4 --tasks records
# A choice turned round (test/wrong_choices.c) is seen: the same lists in length, of the blocks that score least.
ways() { # a program: what a sparse prompt's lists find, and lists spread evenly
    "$1" needles -q -m n.gguf --length 4096 --cases 8 --sparse 0.3 --sparse-dense 0 --tasks copies >out && echo passed || echo "status $?"
    sed 's/.*"blind":\([a-z]*\).*"dense":{"right":\([0-9.]*\).*"flags":{"right":\([0-9.]*\).*"spread":{"right":\([0-9.]*\).*/blind \1, dense \2, flags \3, spread \4/' out
}
ways dflash-bench
ways "$DATA/../test/wrong/dflash-bench"
# Turns go on from a state, in a file of TMPDIR.
TMPDIR=$PWD/none dflash-bench needles -q -m n.gguf --length 1024 --cases 1 --tasks turns 2>&1 | sed 's/-[A-Za-z0-9]*: /-X: /;s/.*none/none/'
# A pool loses what it does not hold; the dense way beside it has none.
suite 'pool 448' 1 --pool 448 --tasks turns
sed 's/.*"pool":\([0-9]*\),.*"dense":{"right":\([0-9.]*\),.*/pool \1: dense \2/' out
dflash-bench report -q out 2>&1 | sed -n "s/.*\(a line of kind 'needles' is not shown\).*/\1/p"
dflash-bench needles -q -m n.gguf --length 1024 --cases 4 --tasks keys --seed 7 >a
dflash-bench needles -q -m n.gguf --length 1024 --cases 4 --tasks keys --seed 7 --chunk 128 --threads 1 >b
cmp <(sed 's/"machine".*//' a) <(sed 's/"machine".*//' b) && echo 'the same twice, in other pieces'
says() { # status, what stderr holds, flags
    rc=0
    dflash-bench needles "${@:3}" >out 2>err || rc=$?
    [ "$rc" = "$1" ] && [ ! -s out ] && grep -q -e "$2" err || echo "$*: status $rc: $(cat err)"
}
says 3 'not the suite.s model (expected 512 ids' -m "$DATA/target-bf16.gguf"
says 2 '--length: expected a multiple of 128, got 1100' -m n.gguf --length 1100
says 2 '--tasks: expected records, keys, last, values, chains, copies or turns, got .key.' -m n.gguf --tasks records,key
says 2 '--chunk: expected a multiple of 128' -m n.gguf --chunk 100
says 2 '-d: prompts are not drafted' -m n.gguf -d n.gguf
says 2 '--compress: expected more than 0 and at most 1, got 0' -m n.gguf --compress 0
says 2 '--compress: turns go on from a state' -m n.gguf --compress 0.5 --tasks records,turns
says 2 'is too small for what must stay' -m n.gguf --length 1024 --cases 1 --compress 0.1 --tasks records
