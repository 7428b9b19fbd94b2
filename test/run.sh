#!/bin/bash
# run.sh - run the suites of a group against their plan and end with one line: N passed, N failed.
#
# usage: test/run.sh GROUP LOG SUITE=COMMAND...     (from the repository's root)
#        test/run.sh --plan GROUP LOG               write what the run of that LOG has made into the plan
# Each COMMAND is run by bash; its output goes to the terminal and LOG. A check is a line "ok   NAME" or "FAIL NAME", or a
# test of cmocka. A suite that exits non-zero without a failed check counts as one.
#
# The plan is test/PLAN (PLAN in the environment names another), a line a suite:
#   SUITE CHECKS GROUPS [FACT=VALUE...]
# CHECKS is the number of checks, or =GROUP: the sum of that group's. GROUPS, joined by commas, are those that the suite
# belongs to. A line with facts is for machines and builds of which they are true: isa=N is the number of instruction sets
# of the CPU's kernels (3: AVX-512, AVX2, scalar), further ones come from FACTS in the environment. The plan is committed
# and written by nothing that a run finds, so an empty wildcard is seen. "FAIL plan/SUITE" says that a suite made fewer or
# more checks than planned, that it has no line, or that it has one and was not run. Suites of five seconds and more are named
# with their times, the slowest first.
set -u
plan=${PLAN:-test/PLAN}
rewrite=
if [ "${1-}" = --plan ]; then
    rewrite=1
    shift
fi
[ $# -ge 2 ] || {
    echo "usage: test/run.sh GROUP LOG SUITE=COMMAND... | --plan GROUP LOG" >&2
    exit 2
}
group=$1 log=$2
shift 2

# What kernels/cpu/cpu.c asks the machine for.
instruction_sets() {
    local n=1 have set
    have=" $(sed -n '/^flags/{s/.*://p;q}' /proc/cpuinfo 2>/dev/null) "
    for set in "avx2 fma f16c" "avx512f avx512bw avx512vl avx512dq avx512_vnni"; do
        for flag in $set; do [[ $have == *" $flag "* ]] || break 2; done
        n=$((n + 1))
    done
    echo $n
}
facts=" isa=$(instruction_sets) ${FACTS:-} "

# ---- the plan: suite[i], checks[i], groups[i], where[i]; line[i]: its place in the file ----
suite=() checks=() groups=() where=() line=()
number=0 wrong=
while IFS= read -r text || [ -n "$text" ]; do
    number=$((number + 1))
    [[ $text =~ ^[[:space:]]*(#|$) ]] && continue
    read -r a b c d <<<"$text"
    suite+=("$a") checks+=("$b") groups+=("${c:-}") where+=("${d:-}") line+=("$number")
    [[ $b =~ ^(=[a-z-]+|[1-9][0-9]*)$ ]] && [ -n "${c:-}" ] || wrong="$plan:$number: expected SUITE CHECKS GROUPS, CHECKS above 0"
done <"$plan" || wrong="$plan: cannot be read"
[ -z "$wrong" ] || {
    echo "FAIL plan: $wrong"
    exit 1
}

in_group() { [[ ",${groups[$1]}," == *",$2,"* ]]; } # INDEX GROUP
is_true() {                                         # INDEX: all its facts
    local f
    for f in ${where[$1]}; do [[ $facts == *" $f "* ]] || return 1; done
}
find_line() { # SUITE GROUP: sets at, the line for this machine and build, or none; two are an error
    local i
    at=
    for i in "${!suite[@]}"; do
        [ "${suite[i]}" = "$1" ] && in_group "$i" "$2" && is_true "$i" || continue
        [ -z "$at" ] || wrong="$plan: lines ${line[at]} and ${line[i]} are both for $1 of $2"
        at=$i
    done
}
checks_of() { # INDEX: prints the number
    local i sum=0 of=${checks[$1]#=}
    [ "$of" != "${checks[$1]}" ] || {
        echo "$of"
        return
    }
    for i in "${!suite[@]}"; do
        in_group "$i" "$of" && is_true "$i" && sum=$((sum + checks[i]))
    done
    echo $sum
}

# ---- --plan: the numbers of LOG into the file ----
if [ -n "$rewrite" ]; then
    status=0
    declare -A made=() planned=()
    facts=" $(sed -n '1s/^-- facts: //p' "$log") "
    grep -q '^-- end$' "$log" || {
        echo "run.sh: $log: the run was not complete" >&2
        exit 1
    }
    mapfile -t file <"$plan"
    while read -r _ name n bad; do
        [ "$bad" = 0 ] || {
            echo "$name: failed, so its line is left as it is" >&2
            status=1
            made[$name]=0
            continue
        }
        made[$name]=$n
    done < <(grep '^-- suite ' "$log" | sed 's/^-- //')
    for i in "${!suite[@]}"; do
        in_group "$i" "$group" && is_true "$i" || continue
        n=${made[${suite[i]}]:-gone}
        planned[${suite[i]}]=1
        case ${checks[i]}:$n in
        =* | *:0 | "$n:$n") ;;
        *:gone)
            echo "${suite[i]}: not run, so its line goes" >&2
            unset "file[${line[i]} - 1]"
            ;;
        *)
            echo "${suite[i]}: ${checks[i]} becomes $n" >&2
            file[${line[i]} - 1]=$(printf '%-32s %6d  %s' "${suite[i]}" "$n" "${groups[i]}${where[i]:+  ${where[i]}}")
            ;;
        esac
    done
    for name in $(printf '%s\n' "${!made[@]}" | sort); do
        [ -z "${planned[$name]:-}" ] && [ "${made[$name]}" != 0 ] || continue
        of=$group after=${#file[@]}
        for i in "${!suite[@]}"; do # groups and place of what stands in the same folder
            [[ $name == */* && ${suite[i]} == "${name%/*}"/* ]] && in_group "$i" "$group" && [ -z "${where[i]}" ] || continue
            of=${groups[i]} after=${line[i]}
        done
        echo "$name: new, ${made[$name]}" >&2
        file[after - 1]=${file[after - 1]:-}$'\n'$(printf '%-32s %6d  %s' "$name" "${made[$name]}" "$of")
    done
    printf '%s\n' "${file[@]}" >"$plan.new" && mv "$plan.new" "$plan" || exit 4
    exit $status
fi

# ---- run ----
mkdir -p "$(dirname "$log")"
echo "-- facts:${facts% }" >"$log"
say() { echo "$*" | tee -a "$log"; }
ok_lines='^(ok   |\[       OK \] )'
bad_lines='^(FAIL |\[  FAILED  \] [A-Za-z_0-9]+$)'
declare -A ran=() seconds=()
# SUITE_JOBS suites at a time, each of whose output is shown when it is done, in the order of the call; one is shown as it runs.
jobs=${SUITE_JOBS:-1} suites=("$@") started=0 running=0
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
start() { # INDEX: a background job ignores SIGINT, which tests send
    local begun=$SECONDS status
    env --default-signal=INT,QUIT bash -c "${suites[$1]#*=}" >"$parts/$1" 2>&1 </dev/null
    status=$?
    echo "$status $((SECONDS - begun))" >"$parts/$1.new"
    mv "$parts/$1.new" "$parts/$1.end"
}
await() { # INDEX: starts what there is room for, until that one is done
    while [ ! -e "$parts/$1.end" ]; do
        while [ "$started" -lt ${#suites[@]} ] && [ "$running" -lt "$jobs" ]; do
            start "$started" &
            started=$((started + 1)) running=$((running + 1))
        done
        wait -n
        running=$((running - 1))
    done
}
for index in "${!suites[@]}"; do
    pair=${suites[index]}
    name=${pair%%=*} command=${pair#*=}
    say "== $name: $command"
    from=$(($(wc -l <"$log") + 1)) begun=$SECONDS
    if [ "$jobs" -gt 1 ]; then
        await "$index"
        tee -a "$log" <"$parts/$index"
        read -r status took <"$parts/$index.end"
        begun=$((SECONDS - took))
        rm "$parts/$index"
    else
        bash -c "$command" 2>&1 | tee -a "$log"
        status=${PIPESTATUS[0]}
    fi
    here=$(tail -n +"$from" "$log")
    passed=$(grep -cE "$ok_lines" <<<"$here")
    # cmocka names a failed or skipped test twice
    failed=$(grep -E "$bad_lines" <<<"$here" | grep -v '^FAIL plan/' | sort -u | wc -l)
    skipped=$(grep -E '^\[  SKIPPED \] [A-Za-z_0-9]+$' <<<"$here" | sort -u | wc -l)
    [ "$skipped" = 0 ] || say "skip $name: $skipped"
    found=$((passed + failed + skipped))
    [ "$status" = 0 ] || [ "$failed" != 0 ] || say "FAIL $name: exit status $status"
    find_line "$name" "$group"
    if [ -n "${ran[$name]:-}" ]; then
        say "FAIL plan/$name: run twice"
    elif [ -z "$at" ]; then
        say "FAIL plan/$name: expected a line for $group$facts in $plan, found none; $found checks were made"
    else
        expected=$(checks_of "$at")
        [ "$found" = "$expected" ] || say "FAIL plan/$name: expected $expected checks ($plan:${line[at]}), found $found"
    fi
    ran[$name]=1
    echo "-- suite $name $found $((failed + (status != 0)))" >>"$log"
    seconds[$name]=$((SECONDS - begun))
done
for i in "${!suite[@]}"; do
    in_group "$i" "$group" && is_true "$i" && [ -z "${ran[${suite[i]}]:-}" ] || continue
    say "FAIL plan/${suite[i]}: expected $(checks_of "$i") checks ($plan:${line[i]}), found none: it was not run"
done
[ -z "$wrong" ] || say "FAIL plan: $wrong"
# what to look at where a run takes long
slow=$(for name in "${!seconds[@]}"; do echo "${seconds[$name]} $name"; done | sort -rn | head -n 8 | awk '$1 >= 5 {printf "%s%s %d s", n++ ? ", " : "", $2, $1}')
[ -z "$slow" ] || say "slowest: $slow"
echo "-- end" >>"$log"
passed=$(grep -cE "$ok_lines" "$log")
failed=$(grep -cE "$bad_lines" "$log")
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
