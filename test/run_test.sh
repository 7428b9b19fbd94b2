#!/bin/bash
# run_test.sh - test/run.sh sees suites that make fewer or more checks than planned, and those that never ran.
#
# usage: test/run_test.sh      (from the repository's root)
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
verdict() { # STATUS NAME
    [ "$1" = 0 ] && echo "ok   run/$2" || { echo "FAIL run/$2" && sed 's/^/    /' "$work/out" && failed=1; }
}
cmocka() { # NAME...: what a program of cmocka prints of tests that pass
    printf '[ RUN      ] %s\n[       OK ] %s\n' $(for t; do echo "$t $t"; done)
}
export -f cmocka
good="for i in 1 2 3; do echo \"ok   s/\$i\"; done"
# A group of two suites, a and b, planned with 3 and 2 checks: b is good, a is what the case makes of it.
try() { # STATUS NAME PATTERN COMMAND...: run.sh ends so, and prints exactly one line of the pattern, if there is one
    local want=$1 name=$2 pattern=$3 status n
    shift 3
    FACTS="${facts-}" PLAN=$work/plan test/run.sh group "$work/log" "$@" >"$work/out" 2>&1
    status=$?
    n=$(grep -cE "^FAIL " "$work/out")
    [ "$status" = "$want" ] && if [ -n "$pattern" ]; then
        [ "$n" = 1 ] && grep -qE "^FAIL $pattern" "$work/out"
    else
        [ "$n" = 0 ]
    fi
    verdict $? "$name"
}
printf '# a comment\n\na 3 other,group\nb 2 group\nc 9 other\n' >"$work/plan"
b="b=cmocka one two"
try 0 "a plan that is met" "" "a=$good" "$b"
[ "$(tail -n 1 "$work/out")" = "5 passed, 0 failed" ]
verdict $? "its last line"
SUITE_JOBS=2 try 0 "a plan that is met, two suites at a time" "" "a=sleep 0.3; $good" "$b"
[ "$(grep -E '^ok   s/1$|OK \] one$' "$work/out" | head -n 1)" = "ok   s/1" ]
verdict $? "their order"
SUITE_JOBS=3 try 1 "an exit status, two suites at a time" "b: exit status 7$" "a=$good" "$b; exit 7"
try 1 "a suite that prints nothing" "plan/a: expected 3 checks .*, found 0$" "a=true" "$b"
try 1 "a loop over nothing" "plan/a: expected 3 checks .*, found 0$" "a=shopt -s nullglob; for f in $work/*.none; do echo \"ok   \$f\"; done" "$b"
try 1 "a short suite" "plan/a: expected 3 checks .*, found 2$" "a=$good | head -n 2" "$b"
try 1 "a suite that exceeds" "plan/a: expected 3 checks .*, found 4$" "a=$good; echo 'ok   s/4'" "$b"
try 1 "a program of cmocka that ends early" "plan/b: expected 2 checks .*, found 1$" "a=$good" "b=cmocka one; exit 0"
try 1 "a suite without a line" "plan/d: expected a line for group .* found none; 1 checks were made$" "a=$good" "$b" "d=echo 'ok   d'"
try 1 "a suite of another group" "plan/c: expected a line for group " "a=$good" "$b" "c=echo 'ok   c'"
try 1 "a suite that was not run" "plan/b: expected 2 checks .*: it was not run$" "a=$good"
try 1 "a suite run twice" "plan/a: run twice$" "a=$good" "a=$good" "$b"
try 1 "a failed check" "s/3$" "a=$good | sed 's/ok   s.3/FAIL s\\/3/'" "$b"
try 1 "a test of cmocka that failed" "" "a=$good" "b=cmocka one; printf '[  FAILED  ] two\n[  FAILED  ] tests: 1 test(s), listed below:\n[  FAILED  ] two\n'; exit 1"
try 1 "an exit status" "b: exit status 7$" "a=$good" "$b; exit 7"
try 1 "a suite ended by a signal" "plan/a: expected 3 checks .*, found 1$|a: exit status 1" "a=echo 'ok   s/1'; echo 'ok   s/2'; echo 'ok   s/3'; kill -9 \$\$" "$b"
try 0 "a skipped test" "" "a=$good" "b=cmocka one; printf '[  SKIPPED ] two\n[  SKIPPED ] tests: 1 test(s), listed below:\n[  SKIPPED ] two\n'"

# lines that hold on some machines
printf 'a 3 group x=1\na 4 group x=2\nb 2 group\nd 1 group x=2\nsum =group all\n' >"$work/plan"
facts="x=1" try 0 "facts that are true" "" "a=$good" "$b"
facts="x=2" try 1 "another machine's number" "plan/a: expected 4 checks .*, found 3$" "a=$good" "$b" "d=echo 'ok   d'"
facts="x=3" try 1 "a machine that no line is for" "plan/a: expected a line for group .*x=3.* found none" "a=$good" "$b"
sum() { FACTS="x=1" PLAN=$work/plan test/run.sh all "$work/log" "sum=$1" >"$work/out" 2>&1; }
sum "$good; cmocka one two" && ! sum "$good; cmocka one" && grep -q "^FAIL plan/sum: expected 5 checks .*, found 4$" "$work/out"
verdict $? "the sum of a group"
for bad in 'a 0 group' 'a group' 'a 3' 'a three group' 'a =group' 'a 3 group|a 4 group'; do
    tr '|' '\n' <<<"$bad" >"$work/plan"
    PLAN=$work/plan test/run.sh group "$work/log" "a=$good" >"$work/out" 2>&1
    [ $? = 1 ] && grep -q "^FAIL plan: $work/plan" "$work/out"
    verdict $? "a line that is none: $bad"
done
PLAN=$work/none test/run.sh group "$work/log" "a=$good" >"$work/out" 2>&1
[ $? = 1 ] && grep -q "^FAIL plan: $work/none" "$work/out"
verdict $? "a plan that is not there"

# the numbers of a run into the plan: those of suites that passed, of this machine
printf '# kept\nt/a 2 group,other\nt/b 2 group\nbad 3 group\ngone 1 group\nt/a 7 group x=2\nfar 5 other\n' >"$work/plan"
FACTS="x=1" PLAN=$work/plan test/run.sh group "$work/log" "t/a=$good" "t/b=cmocka one two" "t/c=echo 'ok   c'" \
    "bad=echo 'ok   1'; echo 'FAIL 2'" "empty=true" >"$work/out" 2>&1
PLAN=$work/plan test/run.sh --plan group "$work/log" >"$work/out" 2>&1
[ $? = 1 ] && tr -s ' ' <"$work/plan" | cmp -s - <(printf '# kept\nt/a 3 group,other\nt/b 2 group\nt/c 1 group\nbad 3 group\nt/a 7 group x=2\nfar 5 other\n')
verdict $? "a plan written anew"
sed -i '$d' "$work/log"
cp "$work/plan" "$work/old"
! PLAN=$work/plan test/run.sh --plan group "$work/log" >"$work/out" 2>&1 && cmp -s "$work/plan" "$work/old"
verdict $? "not of a run that was stopped"
exit $failed
