# Files that are sound and cannot be run here: --check says it and is content, --for-use and --pair are not, and a run says the same.
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
printf '\5\0\0\0' >p
status() { # COMMAND...: its exit status, what it prints goes to out
    s=0
    "$@" >out 2>err <p || s=$?
    echo "$s"
}
for f in "$DATA"/dialects/types/*.gguf; do
    echo "$(basename "$f" .gguf): $(status dflash-inspect --check "$f") $(status dflash-inspect --check --for-use "$f")" \
        "$(status dflash-inspect --pair "$T" "$f") $(status dflash-generate -q -m "$T" -d "$f" -n 1 -o o --force)"
    dflash-inspect --check "$f" | grep '  use:'
done
echo "well: $(status dflash-inspect --check --for-use "$T") $(status dflash-inspect --check --for-use "$D")"
# a target with a type of the same size in place of another
LC_ALL=C sed 's/\(blk\.[12]\.ffn_up\.weight\x02\x00\x00\x00.\{16\}\)\x0c\x00\x00\x00/\1\x28\x00\x00\x00/' "$DATA/target-q4_k.gguf" >t.gguf
cmp -s t.gguf "$DATA/target-q4_k.gguf" && echo "nothing changed"
echo "target: $(status dflash-inspect --check t.gguf) $(status dflash-inspect --check --for-use t.gguf)" \
    "$(status dflash-inspect --pair t.gguf "$D") $(status dflash-generate -q -m t.gguf -n 1 -o o --force)"
dflash-inspect --pair t.gguf "$D" | grep -A1 types || true
dflash-inspect --check --for-use t.gguf | grep -A1 -E '(use|ffn_up\.weight):|^check' || true
# relatives cannot be run either
for f in "$DATA"/dialects/relative-{biased,sinks}.gguf; do
    echo "$(basename "$f"): $(status dflash-inspect --check "$f") $(status dflash-inspect --check --for-use "$f")"
done
status dflash-inspect --for-use "$T" && cat err
status dflash-inspect --check --for-use "$SRC/data/pair/drafter" && cat err
# what each type is good for
dflash-inspect --check "$DATA/dialects/types/NVFP4.gguf" | grep '^ok *type'
dflash-inspect --check --json "$DATA/dialects/types/NVFP4.gguf" | grep -o '"name":"NVFP4".*'
dflash-inspect --check "$T" | grep 'use:'
dflash-inspect --check "$DATA/dialects/small-sunk.gguf" | grep 'use:'
