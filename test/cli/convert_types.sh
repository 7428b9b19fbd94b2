# convert --type q4_k_m and q8_0 make the same file as convert --type f32 followed by quantize; a drafter's tokenizer is the
# same whether it came from the target's directory or its GGUF.
for m in target drafter; do
    for t in q4_k_m q8_0 f16 bf16; do
        dflash-quantize -q "$DATA/$m-f32.gguf" -o q.gguf --type $t --force
        cmp q.gguf "$DATA/$m-$t.gguf" && echo "$m $t"
    done
done
# the other types and mixes: the same file again, of a checkpoint
for t in q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k q4_k_s q5_k_s q5_k_m q2_k q3_k_s q3_k_m q3_k_l iq4_nl iq4_xs iq3_m mxfp4_moe; do
    dflash-quantize -q "$DATA/drafter-f32.gguf" -o q.gguf --type $t --force
    dflash-convert -q "$SRC/data/pair/drafter" --target "$SRC/data/pair/target" --type $t | cmp - q.gguf && echo drafter $t
done
dflash-quantize -q "$DATA/target-f32.gguf" -o q.gguf --type iq4_xs --force
dflash-convert -q "$SRC/data/pair/target" --type iq4_xs | cmp - q.gguf && echo target iq4_xs
# and of a GGUF; a mix asks the same of each family's model, with random weights too
dflash-convert -q "$DATA/drafter-f32.gguf" --type q3_k_m | cmp - <(dflash-quantize -q "$DATA/drafter-f32.gguf" --type q3_k_m) && echo gguf q3_k_m
types() { dflash-inspect --tensors "$1" | awk '$1 ~ /weight$/ { print $1, $2 }'; }
for f in "$SRC"/test/family/*.json; do
    dflash-convert -q "$f" --random 1 --type f32 -o f.gguf --force
    for t in q4_k_m q2_k q3_k_m iq4_xs; do
        dflash-convert -q "$f" --random 1 --type $t -o a.gguf --force
        dflash-quantize -q f.gguf --type $t -o b.gguf --force
        [ "$(types a.gguf | wc -l)" -gt 10 ] && cmp <(types a.gguf) <(types b.gguf) || echo "$f $t: other types"
    done
done 2>/dev/null
echo families
dflash-convert -q "$SRC/data/pair/drafter" --target "$DATA/target-f32.gguf" --type f32 | cmp - "$DATA/drafter-f32.gguf"
dflash-convert -q "$SRC/data/pair/drafter" --target "$SRC/data/pair/target" --type f32 -o d.gguf --threads 1
cmp d.gguf "$DATA/drafter-f32.gguf" && echo drafter through a pipe, and with one thread
