# Input in pieces: a pipe that gives a byte at a time, and one that ends within an id or within a state. The first changes
# nothing; the second is malformed (3), with nothing written.
. "$SRC/test/cli/outputs.inc"
inputs
bytes() { # FILE: each byte a write of its own
    dd if="$1" bs=1 status=none
}
printf 'A text, of a few words.\n{"not":"json"}\n' >text
dflash-tokenize -m "$T" <text >ids
dflash-prefill -q -m "$T" -d "$D" <ids >state
dflash-tokenize -m "$T" --decode <ids >out.text
dflash-generate -q -m "$T" -d "$D" -n 8 --ignore-eos <ids >out.gen
bytes text | dflash-tokenize -m "$T" | cmp - ids
bytes ids | dflash-tokenize -m "$T" --decode | cmp - out.text
bytes ids | dflash-prefill -q -m "$T" -d "$D" | cmp - state
bytes ids | dflash-generate -q -m "$T" -d "$D" -n 8 --ignore-eos | cmp - out.gen
bytes state | dflash-generate -q -m "$T" -d "$D" --state - -n 8 --ignore-eos | cmp - out.gen
bytes ids | dflash-bench compare /dev/stdin ids | grep -q '^equal'
dflash-bench compare --json ids ids | dd bs=1 status=none | dflash-bench report - | grep -q '1 equal'
# pieces of other sizes, with pauses between them
{ head -c 3 ids; sleep 0.1; tail -c +4 ids | head -c 6; sleep 0.1; tail -c +10 ids; } | dflash-tokenize -m "$T" --decode | cmp - out.text
{ head -c 3 ids; sleep 0.1; tail -c +4 ids; } | dflash-generate -q -m "$T" -n 8 --ignore-eos | cmp - out.gen
# ends within an id
for n in 1 2 3 5 7 $(($(stat -c %s ids) - 1)); do
    head -c "$n" ids >cut
    for input in '<cut' '< <(cat cut)'; do
        try "decode, $n bytes" 3 "dflash-tokenize -m $T --decode -o o $input"
        try "prefill, $n bytes" 3 "dflash-prefill -q -m $T -o o --logits o2 $input"
        try "generate, $n bytes" 3 "dflash-generate -q -m $T -n 2 -o o --stats o2 $input"
        try "generate --append, $n bytes" 3 "dflash-generate -q -m $T -n 2 --state state --append -o o $input"
    done
    try "bench run, $n bytes" 3 "dflash-bench run -q -m $T -n 2 --runs 1 cut -o o"
    try "bench compare, $n bytes" 3 "dflash-bench compare ids cut -o o"
done
# ends within a state: at its head, in a section, before the last checksum
size=$(stat -c %s state)
for n in 0 1 7 8 15 16 19 27 28 100 700 $((size / 2)) $((size - 25)) $((size - 24)) $((size - 5)) $((size - 1)); do
    try "state, $n bytes" 3 "head -c $n state | dflash-generate -q -m $T -d $D --state - -n 2 -o o --stats o2"
    try "state in a file, $n bytes" 3 "head -c $n state >cut; dflash-generate -q -m $T -d $D --state cut -n 2 -o o"
done
try "state and a byte" 3 "{ cat state; printf x; } | dflash-generate -q -m $T -d $D --state - -n 2 -o o"
echo checked
