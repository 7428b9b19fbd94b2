# A folder, a missing folder, a file as a folder, an empty name, and a file that may not be read: the documented status, a
# message, nothing written.
. "$SRC/test/cli/outputs.inc"
inputs
mkdir dir
while IFS='|' read -r name command; do
    # /dev/null beside it stays; only the output asked for is a folder
    try "$name to a folder" 4 "${command//@/dir}"
    try "$name to a folder with a slash" 4 "${command//@/dir/}"
    try "$name to a missing folder" 4 "${command//@/nowhere/o}"
    try "$name to a missing folder with a slash" 4 "${command//@/nowhere/}"
    try "$name below a file" 4 "${command//@/text/o}"
    try "$name to an empty name" 2 "${command//@/\"\"}"
    try "$name to a name too long" 4 "${command//@/$(printf 'x%.0s' $(seq 300))}"
    [ -z "$(ls -A dir)" ] || echo "$name: left in the folder: $(ls -A dir)"
done < <(writers)
readers() { # NAME|STATUS of a folder|COMMAND: @ is the input
    cat <<END
convert|4|dflash-convert -q @ -o o
convert-target|4|dflash-convert -q $D --target @ -o o
quantize|4|dflash-quantize -q @ --type q8_0 -o o
inspect|4|dflash-inspect @ -o o
inspect-check|4|dflash-inspect --check @ -o o
inspect-pair|4|dflash-inspect --pair $T @ -o o
inspect-diff|4|dflash-inspect --diff $T @ -o o
tokenize|4|dflash-tokenize -m @ -o o <text
tokenize-stdin|4|dflash-tokenize -m $T -o o <@
decode-stdin|4|dflash-tokenize -m $T --decode -o o <@
prefill|4|dflash-prefill -q -m @ -o o <p
prefill-drafter|4|dflash-prefill -q -m $T -d @ -o o <p
prefill-stdin|4|dflash-prefill -q -m $T -o o --logits o2 <@
generate|4|dflash-generate -q -m @ -n 2 -o o <p
generate-drafter|4|dflash-generate -q -m $T -d @ -n 2 -o o <p
generate-stdin|4|dflash-generate -q -m $T -n 2 -o o --stats o2 <@
generate-state|4|dflash-generate -q -m $T -n 2 --state @ -o o
bench-run|4|dflash-bench run -q -m $T -n 2 --runs 1 @ -o o
bench-run-model|4|dflash-bench run -q -m @ -n 2 --runs 1 p -o o
bench-rows|4|dflash-bench rows -q -m @ -o o
bench-compare|4|dflash-bench compare p @ -o o
bench-report|4|dflash-bench report @ -o o
END
}
# An empty folder, a missing file, a file that gives no bytes.
mkfifo nobody
mkdir empty
touch nothing
while IFS='|' read -r name status command; do
    # a folder as a model is malformed where a checkpoint could have been meant: 3 or 4, by what the program can tell
    for input in empty nofile; do
        [ $name$input != inspect-checkempty ] || continue # that is an answer: bad
        s=0
        bash -c "${command//@/$input}" 2>err >/dev/null || s=$?
        case $command in *"<@") [ $input = empty ] || continue ;; esac
        [ "$s" = 4 ] || { [ "$s" = 3 ] && [ $input = empty ]; } || echo "$name of $input: status $s: $(cat err)"
        [ -s err ] && grep -q "$input\|stdin" err || echo "$name of $input: not named: $(cat err)"
        [ ! -e o ] && [ ! -e o2 ] || { echo "$name of $input: left an output" && rm -f o o2; }
    done
    case $name in *-stdin | bench-compare | bench-report) continue ;; esac
    [ $name = inspect-check ] || try "$name of an empty file" 3 "${command//@/nothing}"
    case $name in generate-state | bench-run) continue ;; esac # a state and a prompt may be pipes
    try "$name of a pipe" 4 "${command//@/nobody}"
done < <(readers)
# Permissions. They bind root as another user only, where the programs can be run by one. That user may not be able to enter the
# clone (root's home, a private folder), so what it runs and reads is copied to a place that anybody can enter.
cp "$T" secret
chmod 000 secret
as=
if [ "$(id -u)" = 0 ]; then
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
    chmod 755 . "$place"
    mkdir -p "$place/bin" "$place/data/pair" "$place/src/data/pair" "$place/src/test/family"
    cp "$(dirname "$(command -v dflash-inspect)")"/dflash* "$place/bin"
    cp "$T" "$D" "$DATA/drafter-bf16.gguf" "$place/data"
    cp -r "$SRC/data/pair/drafter" "$place/src/data/pair"
    cp "$SRC/test/family/qwen3moe.json" "$place/src/test/family"
    chmod -R a+rX "$place"
    if setpriv --reuid 65534 --clear-groups "$place/bin/dflash-inspect" --version >/dev/null 2>&1 &&
        setpriv --reuid 65534 --clear-groups test -x .; then
        as="setpriv --reuid 65534 --clear-groups "
        PATH=$place/bin:$PATH DATA=$place/data SRC=$place/src
        T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
    else
        echo "skipped: permissions: no program runs as user 65534 here" >&2
    fi
fi
mkdir locked open
chmod 555 locked
chmod 777 open
if [ -n "$as" ] || [ "$(id -u)" != 0 ]; then
    while IFS='|' read -r name status command; do
        case $command in *"<@") continue ;; esac # the shell opens it
        try "$name without permission to read" 4 "$as${command//@/secret}"
        grep -q 'secret.*Permission denied' err || case $name in *) echo "$name: $(cat err)" ;; esac
    done < <(readers | sed 's/-o o\b/-o open\/o/; s/--logits o2/--logits open\/o2/; s/--stats o2/--stats open\/o2/')
    [ -z "$(ls -A open)" ] || echo "left behind: $(ls -A open)"
    while IFS='|' read -r name command; do
        chmod 644 text p q r cell
        [[ $command != *"-o /dev/null"* ]] || continue
        try "$name into a folder that takes none" 4 "$as${command//@/locked/o}"
    done < <(writers)
fi
chmod 755 locked
echo checked
