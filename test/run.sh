#!/bin/bash
# run.sh - run every suite and end with one line: N passed, N failed.
#
# usage: test/run.sh LOG COMMAND...     each COMMAND is one suite, run by bash; its output goes to the terminal and LOG
# Counted: cmocka's lines, and lines of the form "ok   NAME" and "FAIL NAME". A suite that exits non-zero without a
# counted failure counts as one.
set -u
log=$1
shift
mkdir -p "$(dirname "$log")"
: >"$log"
extra=0
for suite in "$@"; do
    from=$(($(wc -l <"$log") + 1))
    echo "== $suite" | tee -a "$log"
    bash -c "$suite" 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" != 0 ] && ! tail -n +"$from" "$log" | grep -qE '^(FAIL |\[  FAILED  \] [A-Za-z])'; then
        echo "FAIL $suite: exit status $status" | tee -a "$log"
    fi
done
passed=$(grep -cE '^(ok   |\[       OK \] )' "$log")
failed=$(grep -cE '^(FAIL |\[  FAILED  \] [A-Za-z_0-9]+$)' "$log")
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
