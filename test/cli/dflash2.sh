# A DFlash2 drafter over the pair's target: what inspect says of it, and its way through convert, quantize, states, traces and runs.
T=$DATA/target-q8_0.gguf D=$DATA/drafter-dflash2-bf16.gguf
dflash-inspect "$D" | sed -n '/^kind/p; /^block/p'
dflash-inspect --pair "$T" "$D" | sed -n '/ kind:/p; $p'
dflash-tokenize -m "$T" <"$SRC/data/prompts/python-4-medium.txt" >p
run() { # OUT ARGS...
    local out=$1
    shift
    dflash-generate -q -m "$T" --ignore-eos -n 64 --device cpu "$@" >"$out"
}
accepted() { # STATS: more than one proposal in two cycles
    sed -n 's/.*"tau":\([0-9.]*\).*/\1/p' "$1" | awk '{ print ($1 > 1.5 ? "accepted" : "tau " $1) }'
}
for s in "--temp 0" "--temp 0.8 --top-k 40 --top-p 0.9 --min-p 0.02 --seed 4" "--temp 0.8 --seed 4"; do
    run plain $s <p
    [ "$s" != "--temp 0.8 --seed 4" ] || s="$s --draft-sampling greedy"
    run drafted -d "$D" --width 8 $s --stats stats --draft-trace trace --force <p
    cmp plain drafted && accepted stats
    run one -d "$D" --width 8 $s --draft-trace trace1 --force --threads 1 --isa scalar --chunk 17 <p
    cmp plain one && cmp trace trace1
done
# a state in the middle: the same tokens and proposals
run whole -d "$D" --width 8 --draft-trace trace --force <p
dflash-generate -q -m "$T" -d "$D" --ignore-eos -n 24 --device cpu --width 8 --save-state s --draft-trace t1 <p >a
dflash-generate -q -m "$T" -d "$D" --ignore-eos -n 40 --device cpu --width 8 --state s --draft-trace t2 >b
cat a b | cmp - whole
# logits of the first block: of all rows, the anchor's too
run one -d "$D" --width 8 --draft-logits logits <p
stat -c %s logits
# other types, and dialects
for t in q4_k_m q8_0; do
    dflash-quantize -q "$D" -o q.gguf --type $t --force
    dflash-inspect --tensors q.gguf | awk '/^(selector_|blk.0.*_conv)/ { print $1, $2 }'
    run drafted -d q.gguf --width 8 --stats stats --force <p
    run plain <p
    cmp plain drafted && accepted stats
done
dflash-convert -q "$D" -o copy.gguf
dflash-inspect --diff "$D" copy.gguf | tail -n 1
dflash-convert -q "$D" -o copy.gguf --dialect lucebox --force 2>err || echo $?
sed "s|$DATA|DATA|g; s/ (.*//" err
# a block that is shorter than trained, and tables that have no product here but rows
run drafted -d "$D" --block 3 --width 3 <p && cmp plain drafted
dflash-quantize -q "$D" -o q.gguf --type q8_0 --tensor-type 'selector_*=q2_k' --force
run drafted -d q.gguf --width 8 <p && cmp plain drafted
