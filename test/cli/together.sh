# Several outputs of a run and one that cannot get its name, here because a folder has taken it meanwhile: status 4, none of
# the new ones stays, and every file that was to be replaced is there as it was, the same file. Where all get their names,
# nothing is left beside them.
. "$SRC/test/cli/outputs.inc"
inputs
printf '\5\0\0\0\6\0\0\0\7\0\0\0' >p
dflash-prefill -q -m "$T" --imatrix im.gguf <p
cp im.gguf im.before
mkfifo in
mkdir d
state() { (cd d && for f in *; do [ ! -f "$f" ] || echo "$f $(stat -c %i "$f") $(cksum <"$f")"; done); }
beside() { (cd d && ls -A | tr '\n' ' '); }
taken() { # NAME FILE COMMAND: FILE becomes a folder while COMMAND waits for its tokens
    local s=0 before
    before=$(state | grep -v "^$2 " || true)
    exec 5<>in
    bash -c "exec $3" 2>err >out <in 5>&- &
    for ((i = 0; i < 3000; i++)); do
        [ "$(written $!)" -lt 4 ] || break
        sleep 0.01
    done
    rm -f "d/$2"
    mkdir "d/$2"
    cat p >&5
    exec 5>&-
    wait $! || s=$?
    [ "$s" = 4 ] && grep -q "d/$2: " err || echo "$1: status $s: $(cat err)"
    [ "$before" = "$(state)" ] || echo "$1: before: $before; after: $(state)"
    rmdir "d/$2"
    ! ls d | grep -q '\.old$\|\.tmp$' || echo "$1: left behind: $(beside)"
}
old() { rm -rf d/*; for f in "$@"; do echo "old $f" >"d/$f"; done; }
G="dflash-generate -q -m $T -d $D -n 5 --ignore-eos --force -o d/o --stats d/s --width 8 --draft-trace d/t --draft-logits d/l"
P="dflash-prefill -q -m $T --force -o d/o --logits d/l --hidden d/h --imatrix d/im"
for f in s t l o; do
    old o s t l
    taken "generate, all old, $f" $f "$G"
    old s l
    taken "generate, some old, $f" $f "$G"
    old
    taken "generate, none old, $f" $f "$G"
done
for f in l h; do
    old o l h
    cp im.before d/im
    taken "prefill, $f" $f "$P"
    cmp im.before d/im
    rm -f d/im d/o
    taken "prefill without a matrix, $f" $f "$P"
done
old o s t l
bash -c "$G" <p
[ "$(beside)" = "l o s t " ] && ! grep -ql '^old' d/* || echo "generate: $(beside)"
old o l h
bash -c "$P" <p
[ "$(beside)" = "h im l o " ] && ! grep -ql '^old' d/* || echo "prefill: $(beside)"
echo checked
