# The examples of every man page run as they stand, from the repository's root. Left out: the one that makes a model of 0.6 billion
# weights (convert_random does that at small sizes).
ln -s "$SRC/data" data
ln -s "$SRC/README.md" README.md
for page in "$SRC"/docs/dflash*.1; do
    t=$(basename "$page" .1)
    awk '/^\.Sh/ { on = /EXAMPLES/ } on && /^\.Ed/ { lit = 0 } on && lit { gsub(/\\e/, "\\"); print } on && /^\.Bd/ { lit = 1 }' "$page" |
        grep -v data/configs >"$t.sh" || true
    [ -s "$t.sh" ] || { echo "$t: no examples"; continue; }
    mkdir "in-$t"
    (cd "in-$t" && ln -s ../data ../README.md . && env -u MAKEFLAGS -u MAKELEVEL bash -eu "../$t.sh" >../out 2>../err </dev/null) ||
        { echo "$t: an example fails"; tail -n 3 err; }
done
echo checked
