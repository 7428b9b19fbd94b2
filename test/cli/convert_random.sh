# Random weights: real sizes from a config alone, the same bytes for a seed whatever the threads.
dflash-convert -q "$SRC/data/configs/qwen3-0.6b-dflash.json" --random 5 --type q4_k_m -o a.gguf --threads 1
dflash-convert -q "$SRC/data/configs/qwen3-0.6b-dflash.json" --random 5 --type q4_k_m -o b.gguf --threads 3
cmp a.gguf b.gguf
dflash-convert -q "$SRC/data/configs/qwen3-0.6b-dflash.json" --random 6 --type q4_k_m -o b.gguf --force
cmp -s a.gguf b.gguf || echo other seed, other weights
md5sum <a.gguf
