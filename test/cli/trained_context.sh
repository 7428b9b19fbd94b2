# Without -n and --ctx the caches are of the context that the target was trained for: -v says so, and where they do not fit the
# error names their size and the flag. On the CPU they are address space alone, which is limited here.
mkdir t
cp "$SRC"/data/pair/target/* t
sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4194304/' t/config.json
dflash-convert -q t -o t.gguf --type q8_0
printf '\5\0\0\0' >p
G="dflash-generate -m t.gguf --threads 1 --logit-bias 0=100" # ends at once
$G -v <p 2>&1 >o | sed -n 's/.*\(no -n and\)/\1/p'
for flags in "-n 3" "--ctx 99"; do
    $G -v $flags <p 2>&1 >o | grep 'no -n and' && echo "$flags: not told"
done
[ "$(stat -c %s o)" = 4 ] || echo "it did not end at once"
limited() { # COMMAND
    s=0
    (ulimit -v 1000000 && $1 <p >o 2>err) || s=$?
    echo "$s $(cat err)"
}
if (ulimit -v 1000000 && dflash-generate --version) >/dev/null 2>&1; then # the sanitizers want more
    limited "$G -q"
    limited "$G -q -n 3"
    limited "$G -q --ctx 3000000"
else
    echo "skipped: a limit of address space" >&2
    sed -n '/^4 /,$p' "$SRC/test/cli/trained_context.stdout.exact"
fi
