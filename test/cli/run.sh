#!/bin/bash
# run.sh - run the command-line tests: test/cli/*.sh, each beside what it must print.
#
# usage: test/cli/run.sh BIN_DIR DATA_DIR [NAME...]     NAME: a test without its .sh; default all
# A test NAME.sh runs under `bash -e` in a fresh directory with the programs on PATH, $DATA (converted models, prompts) and
# $SRC (the repository). Beside it: NAME.stdout.exact (whole output), NAME.stderr.glob (a pattern a line), NAME.exit (status,
# default 0). A file that is absent is not compared, but for the status. A line "skipped: ..." on stderr is shown. cases.txt holds small tests, a line each:
# NAME | STATUS | glob of the last line on stderr | command. Prints one line a test; exit 1 if any failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "$1" && pwd) data=$(cd "$2" && pwd)
shift 2
unset MAKEFLAGS MFLAGS MAKELEVEL # tests run make of their own
export PATH="$bin:$PATH" DATA="$data" SRC="${here%/test/cli}" LC_ALL=C
passed=0 failed=0 times=
took() { # NAME MICROSECONDS: how long one took, for what is said at the end
    times+="$2 $1"$'\n'
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=("$@")
[ $# -gt 0 ] || for f in "$here"/*.sh; do
    [ "$(basename "$f")" = run.sh ] || names+=("$(basename "$f" .sh)")
done

match_lines() { # PATTERNS ACTUAL: each line of ACTUAL matches the glob of the same number
    mapfile -t want <"$1"
    mapfile -t got <"$2"
    [ ${#want[@]} = ${#got[@]} ] || return 1
    for i in "${!want[@]}"; do
        # shellcheck disable=SC2053
        [[ ${got[$i]} == ${want[$i]} ]] || return 1
    done
}

for name in "${names[@]}"; do
    t=$here/$name
    mkdir "$work/$name"
    why= begun=${EPOCHREALTIME/./}
    (cd "$work/$name" && bash -e "$t.sh" >"$work/$name.out" 2>"$work/$name.err" </dev/null)
    status=$?
    took "$name" $((${EPOCHREALTIME/./} - begun))
    want=0
    [ -f "$t.exit" ] && want=$(cat "$t.exit")
    [ "$status" = "$want" ] || why="exit status $status (expected $want)"
    if [ -f "$t.stdout.exact" ] && ! cmp -s "$t.stdout.exact" "$work/$name.out"; then why="$why; stdout differs"; fi
    if [ -f "$t.stderr.glob" ] && ! match_lines "$t.stderr.glob" "$work/$name.err"; then why="$why; stderr differs"; fi
    if [ -z "$why" ]; then
        passed=$((passed + 1))
        echo "ok   cli/$name"
        sed -n "s|^skipped: |skip cli/$name: |p" "$work/$name.err"
    else
        failed=$((failed + 1))
        echo "FAIL cli/$name: ${why#; }"
        diff "$t.stdout.exact" "$work/$name.out" 2>/dev/null | head -n 10
        sed 's/^/    stderr: /' "$work/$name.err" | head -n 20
    fi
done
if [ $# = 0 ]; then
    while IFS='|' read -r name want glob command; do
        name=${name// /} want=${want// /} glob=${glob# } glob=${glob% }
        case $name in '' | '#'*) continue ;; esac
        mkdir "$work/case-$name"
        begun=${EPOCHREALTIME/./}
        (cd "$work/case-$name" && bash -c "$command" >"$work/out" 2>"$work/err" </dev/null)
        status=$?
        took "$name" $((${EPOCHREALTIME/./} - begun))
        last=$(tail -n 1 "$work/err")
        # shellcheck disable=SC2053
        if [ "$status" = "$want" ] && [[ $last == $glob ]]; then
            passed=$((passed + 1))
            echo "ok   cli/$name"
        else
            failed=$((failed + 1))
            echo "FAIL cli/$name: status $status (expected $want), last line on stderr: $last"
        fi
    done <"$here/cases.txt"
fi
echo "cli: slowest: $(sort -rn <<<"$times" | head -n 10 | awk 'NF {printf "%s%s %.1f s", n++ ? ", " : "", $2, $1 / 1e6}')"
echo "cli: $passed passed, $failed failed"
[ "$failed" = 0 ]
