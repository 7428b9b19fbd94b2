# Every program answers --help and --version on stdout, refuses an unknown flag with one line and the way to help, and its
# man page names every flag that --help prints and describes none that is not there.
for t in convert quantize inspect tokenize prefill generate bench; do
    dflash-$t --help >help 2>err
    dflash-$t --version >version 2>>err
    dflash-$t -h 2>>err | cmp -s - help || echo "$t: -h is not --help"
    [ ! -s err ] || { echo "$t: --help or --version wrote to stderr"; cat err; }
    grep -qE "^dflash-$t [0-9]+\.[0-9]+\.[0-9]+( \([0-9a-f]{12,}(, changed)?\))?$" version || echo "$t: --version: $(cat version)"
    if [ $t = bench ]; then # its flags are those of its verbs
        for v in run rows calibrate ops matrix work compare report; do dflash-bench $v --help >>help; done
    fi
    rc=0
    dflash-$t --no-such-flag >out 2>err || rc=$?
    [ $rc = 2 ] || echo "$t: an unknown flag: exit status $rc (expected 2)"
    [ ! -s out ] || echo "$t: an unknown flag: something on stdout"
    printf "dflash-%s: unknown flag --no-such-flag\ntry 'dflash-%s --help'\n" $t $t | cmp -s - err ||
        echo "$t: unknown flag: $(cat err)"
    rc=0
    dflash-$t --verion >out 2>err || rc=$?
    [ $rc = 2 ] && [ "$(head -n 1 err)" = "dflash-$t: unknown flag --verion (did you mean --version?)" ] ||
        echo "$t: a flag with a letter missing: $rc: $(cat err)"
    rc=0
    dflash-$t --help >/dev/full 2>/dev/null || rc=$?
    [ $rc = 4 ] || echo "$t: --help to a full disk: exit status $rc (expected 4)"
    sed -nE 's/^  (-[-a-z0-9]+).*/\1/p' help | grep -vxE -e '-q|-v|-h|--help|--version' | sort -u >in_help
    page=$SRC/docs/dflash-$t.1
    [ -f "$page" ] || { echo "$t: no man page"; continue; }
    # ".It Fl -type Ar TYPE", ".It Fl q , Fl v": words after Fl up to Ar, each with its dash
    awk '/^\./ { take = 0
        for (i = 1; i <= NF; i++)
            if ($i == "Fl" || $i == ".Fl") take = 1
            else if ($i ~ /^\.?[A-Z][a-z]$/) take = 0
            else if (take && $i ~ /^[-a-z]/) print ($1 == ".It" ? "item" : "text"), "-" $i }' "$page" >words
    cut -d' ' -f2 words | sort -u >in_page
    sed -n 's/^item //p' words | grep -vxE -e '-q|-v|-h|--help|--version' | sort -u >items
    comm -23 in_help in_page | sed "s/^/$t: not in its man page: /"
    comm -13 in_help items | sed "s/^/$t: in its man page, but no flag: /"
done
echo checked
