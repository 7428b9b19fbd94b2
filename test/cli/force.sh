# An output that is there: refused (2) and left alone without --force, replaced whole with it; through a link, what it points
# at is replaced and the link stays; a failure leaves the old file as it was.
. "$SRC/test/cli/outputs.inc"
inputs
while IFS='|' read -r name command; do
    case $name in prefill-logits | prefill-kl | generate-stats | generate-trace | generate-logits) always=1 ;; *) always=0 ;; esac
    echo old >o
    if [ $always = 0 ]; then
        careful=${command//--force /}
        try "$name, no --force" 2 "${careful//@/o}"
        [ "$(cat o)" = old ] || echo "$name: the old file was changed"
        ln -s nowhere link
        try "$name, no --force, a dangling link" 2 "${careful//@/link}"
        [ -L link ] && grep -q 'link: exists already, as a link to nothing' err || echo "$name, a dangling link: $(cat err)"
        rm link
    fi
    try "$name, --force" 0 "${command//@/o}"
    [ "$(cat o | tr -d '\0')" != old ] || echo "$name: the old file is still there"
    cp o whole
    echo old >o
    ln -s o link
    try "$name through a link" 0 "${command//@/link}"
    [ -L link ] || echo "$name: the link is gone"
    case $name in bench-rows | generate-stats) ;; *) cmp o whole || echo "$name: another file through a link" ;; esac
    rm -f o link whole
    ln -s nowhere link # points at nothing yet
    try "$name through a dangling link" 0 "${command//@/link}" nowhere >said
    [ ! -s said ] && { [ -e nowhere ] || [ ! -L link ]; } || echo "$name: a dangling link: $(cat said) $(ls)"
    rm -f link nowhere said
done < <(writers)
# fails after the old file was looked at: it stays
for c in "dflash-prefill -q -m $T --force -o o --logits o2 </dev/null" "dflash-generate -q -m $T -n 2 --force -o o --stats o2 </dev/null" \
    "dflash-tokenize -m $T --decode --force -o o <text" "dflash-bench report text --force -o o" "dflash-bench compare p nofile --force -o o"; do
    echo old >o
    echo old >o2
    bash -c "$c" 2>err && echo "no failure: $c"
    [ "$(cat o o2)" = "$(printf 'old\nold')" ] || echo "the old file did not stay: $c"
done
echo checked
