# Values that no number is: every numeric flag of every program refuses them with status 2 and a message that names the flag,
# before any file is looked at. The flags are those of --help.
tool() { # NAME ARGUMENTS that are good but for their files
    local program=$1 flag arg value s n=0
    shift
    while read -r flag arg; do
        case $arg in N | X | T | K | P | R | S | B | W | SEED | '0|1') ;; *) continue ;; esac
        n=$((n + 1))
        for value in '' nan -inf 1e999 0x10 1k 9999999999999999999999999999999999999999 -9999999999999999999999999999999999999999 \
            '1 2' ' 1' 1, +-1 -- 1e "$(printf '\331\243')"; do
            s=0
            # shellcheck disable=SC2086
            dflash-$program "$@" "$flag" "$value" >out 2>err || s=$?
            { [ "$s" = 2 ] && grep -qe "$flag" err; } || echo "$program $flag '$value': status $s: $(head -n 1 err)"
            [ ! -s out ] || echo "$program $flag '$value': something on stdout"
        done
    done < <(dflash-$program --help | sed -n 's/^  \(--*[A-Za-z][A-Za-z-]*\) \([^ ]*\).*/\1 \2/p')
    [ "$n" -gt 0 ] || echo "$program: no numeric flags found"
}
tool convert x --random 1
tool quantize x --type q8_0 -o o
tool inspect --pair x y
tool tokenize -m x
tool prefill -m x
tool generate -m x -d y -n 1
tool "bench run" -m x -d y p
tool "bench rows" -m x
tool "bench compare" a b
tool "bench report" f
tool "bench matrix" --target . --drafter . f.txt
rm -f out err
ls -A
echo checked
