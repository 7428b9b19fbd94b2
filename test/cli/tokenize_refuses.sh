# One message on stderr and the documented status for each misuse or bad input; what is good before it is written.
m=$DATA/target-bf16.gguf
try() { "$@" && s=0 || s=$?; echo "$s" >>statuses; }
try dflash-tokenize </dev/null
try dflash-tokenize -m "$m" --decode --no-bos </dev/null
try dflash-tokenize -m "$m" --decode --no-normalize </dev/null
try dflash-tokenize -m "$m" extra </dev/null
printf 'hello' | dflash-tokenize -m "$m" >t
{ cat t; printf '\377\377\0\0'; } >bad
try dflash-tokenize -m "$m" --decode <bad
echo
{ cat t; printf abc; } >odd
try dflash-tokenize -m "$m" --decode <odd
echo
mkdir hf
cp "$SRC/data/pair/target/config.json" "$SRC/data/pair/target/model.safetensors" hf
dflash-convert -q hf -o none.gguf
try dflash-tokenize -m none.gguf <t
touch y
try dflash-tokenize -m "$m" -o y <t
try dflash-tokenize -m hf <t
tr '\n' ' ' <statuses
