# One line on stderr and the documented status for each misuse; nothing is left behind.
try() { "$@" && s=0 || s=$?; echo "$s" >>statuses; }
try dflash-convert
try dflash-convert "$SRC/data/pair/target" --type q3_x -o x.gguf
try dflash-convert "$SRC/data/pair/target" --taps 1,3 -o x.gguf
try dflash-convert "$SRC/data/pair/drafter" --taps 1,x -o x.gguf
try dflash-convert "$SRC/data/pair/drafter" --dialect gguf -o x.gguf
try dflash-convert "$DATA/drafter-f32.gguf" --heads 4,2 -o x.gguf
try dflash-convert "$DATA/target-bf16.gguf" --tap-shift 0 -o x.gguf
try dflash-convert "$SRC/data/pair/drafter" --tap-shift 0 -o x.gguf
try dflash-convert "$SRC/data/configs/qwen3-8b.json" -o x.gguf
try dflash-convert nowhere -o x.gguf
cp "$SRC/data/pair/drafter/model.safetensors" bare.safetensors
try dflash-convert bare.safetensors -o x.gguf
cp -r "$SRC/data/pair/drafter" d
try dflash-convert -q d -o d/model.safetensors --force
cmp bare.safetensors d/model.safetensors
touch y.gguf
try dflash-convert -q "$SRC/data/pair/drafter" -o y.gguf
tr '\n' ' ' <statuses
ls
