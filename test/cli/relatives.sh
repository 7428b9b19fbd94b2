# Drafters of other kinds: named by inspect, told apart by the pair's examination, refused by name (exit 3) where they would
# run; copied by convert in their own dialect and refused in another.
printf '\5\0\0\0' >p
for f in "$DATA"/dialects/relative-*.gguf; do
    name=$(basename "$f" .gguf)
    echo "== $name"
    dflash-inspect "$f" | sed -n -E '/^(kind|drafter) /p' | sed "s|$DATA|DATA|g"
    for t in 'prefill -q -o s' 'generate -q -n 4' 'bench run p' 'bench rows'; do
        rc=0
        dflash-$t -m "$DATA/target-q8_0.gguf" -d "$f" <p >out 2>err || rc=$?
        [ $rc = 3 ] || echo "dflash-$t: exit status $rc"
        grep -q 'running it is not supported' err || sed "s|$DATA|DATA|g" err
    done
    rc=0
    dflash-inspect --pair "$DATA/target-q8_0.gguf" "$f" >out || rc=$?
    [ $rc = 1 ] || echo "inspect --pair: exit status $rc"
    grep -E '^misfit +(kind|drafter):' out | sed "s|$DATA|DATA|g" | cut -c 1-100
    rc=0
    dflash-convert -q "$f" -o copy.gguf --force 2>err || rc=$?
    echo "convert: $rc"
    [ $rc = 3 ] || dflash-inspect --diff "$f" copy.gguf | tail -n 1
    rc=0
    dflash-convert -q "$f" -o other.gguf --force --dialect buun 2>err || rc=$?
    sed -E "s|$DATA|DATA|g; s| \\(.*||" err
done
