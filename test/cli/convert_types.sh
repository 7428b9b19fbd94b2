# convert --type q4_k_m and q8_0 make the same file as convert --type f32 followed by quantize; a drafter's tokenizer is the
# same whether it came from the target's directory or its GGUF.
for m in target drafter; do
    for t in q4_k_m q8_0 f16 bf16; do
        dflash-quantize -q "$DATA/$m-f32.gguf" -o q.gguf --type $t --force
        cmp q.gguf "$DATA/$m-$t.gguf" && echo "$m $t"
    done
done
dflash-convert -q "$SRC/data/pair/drafter" --target "$DATA/target-f32.gguf" --type f32 | cmp - "$DATA/drafter-f32.gguf"
dflash-convert -q "$SRC/data/pair/drafter" --target "$SRC/data/pair/target" --type f32 -o d.gguf --threads 1
cmp d.gguf "$DATA/drafter-f32.gguf" && echo drafter through a pipe, and with one thread
