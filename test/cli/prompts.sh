# The prompts by class are what data/make_prompts.py writes, to the byte.
command -v python3 >/dev/null || {
    echo "skipped: no python3: the prompts were not made anew" >&2
    exit 0
}
mkdir p && cp "$SRC"/data/prompts/python-*.txt "$SRC"/data/prompts/manual-*.txt p
python3 "$SRC/data/make_prompts.py" p
for c in code maths prose chat edit needle; do
    for f in "$SRC"/data/prompts/$c-*.txt; do cmp "$f" "p/$(basename "$f")"; done
done
[ "$(ls p | wc -l)" = "$(ls "$SRC"/data/prompts/*.txt | wc -l)" ] || echo "others than those that are there"
