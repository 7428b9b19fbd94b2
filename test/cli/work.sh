# Workers over one list: every job is done once, the claims of a worker that is killed go to another, and what failed is told.
unset MAKEFLAGS MAKELEVEL
seq -f 'job-%g' 1 12 >names
# a job says who did it, and is not quick
cat >job <<'END'
echo "$$ $1" >>"began.$1"
sleep 0.1
echo done >"made.$1.tmp.$$" && mv "made.$1.tmp.$$" "made.$1"
END
w() { timeout 60 dflash-bench work --file 'made.{}' "$@" claims -- sh job '{}' <names; }
w 2>err1 &
w 2>err2
wait
[ "$(ls made.job-* | wc -l)" = 12 ] && [ "$(cat began.* | wc -l)" = 12 ] || echo "not every job was done once: $(cat began.* | wc -l)"
[ "$(grep -c '^\[[0-9]*/12\] [0-9:]* job-' err1)" -gt 0 ] && [ "$(cat err1 err2 | grep -c '^\[')" = 12 ] || cat err1 err2
# two that begin their last jobs at once do not know of each other's: both are the eleventh
[ "$(cat err1 err2 | sed -n 's/^\[\(1[12]\)\/12\].*/\1/p' | sort | tail -n 2 | tr '\n' ' ')" = "11 12 " ] ||
    [ "$(cat err1 err2 | grep -c '^\[11/12\]')" = 2 ] || echo "neither [11/12] and [12/12], nor [11/12] twice"
w -q 2>err && [ ! -s err ] && [ "$(cat began.* | wc -l)" = 12 ] || echo "once more: not nothing"
rm made.job-3
w -q && [ -e made.job-3 ] && [ "$(cat began.* | wc -l)" = 13 ] || echo "what is gone is not made again"

# killed (kill -9) within a job: its command ends too, another worker does the job again, and all the rest
rm -rf claims made.* began.*
cat >job <<'END'
echo "$$ $1" >>"began.$1"
[ "$1" != job-2 ] || [ -e slow ] || { touch slow && sleep 30; }
echo done >"made.$1.tmp.$$" && mv "made.$1.tmp.$$" "made.$1"
END
w 2>err1 &
first=$!
for _ in $(seq 100); do [ -e slow ] && break || sleep 0.05; done
w 2>err2 &
second=$!
for _ in $(seq 200); do [ "$(ls made.job-* 2>/dev/null | wc -l)" -ge 11 ] && break || sleep 0.05; done
[ "$(ls made.job-* | wc -l)" = 11 ] || echo "the second worker does not go past what is claimed"
command=$(cut -d' ' -f1 began.job-2)
worker=$(ls claims/*/ | sed -n 's/^job-2%.*%\([0-9]*\)%[0-9]*$/\1/p')
kill -9 "$worker"
wait $first 2>/dev/null || true
wait $second
[ -e made.job-2 ] && [ "$(wc -l <began.job-2)" = 2 ] && [ "$(cat began.* | wc -l)" = 13 ] || echo "killed: $(cat began.* | wc -l)"
grep -qx 'dflash-bench work: warning: job-2: its worker is gone; begun again' err1 err2 || cat err1 err2
for _ in $(seq 40); do kill -0 "$command" 2>/dev/null && sleep 0.05 || break; done
! kill -0 "$command" 2>/dev/null || echo "the command of a killed worker still runs"

# another machine's claim: void when it was not touched for a while, and not before
dir=$(echo claims/*)
rm made.job-5 && mv "$dir/job-5%done" "$dir/job-5%elsewhere%1%1" && touch -d '1 hour ago' "$dir/job-5%elsewhere%1%1"
w -q --stale 600 2>err && [ -e made.job-5 ] && grep -q 'job-5: its worker is gone' err || echo "an old claim of another machine: $(cat err)"
rm made.job-6 && mv "$dir/job-6%done" "$dir/job-6%elsewhere%1%1" && touch "$dir/job-6%elsewhere%1%1"
(sleep 0.5 && [ ! -e made.job-6 ] && echo x >made.job-6 && mv "$dir/job-6%elsewhere%1%1" "$dir/job-6%done") & # as its owner does
w -q --stale 600 2>err && [ "$(cat made.job-6)" = x ] && [ ! -s err ] || echo "a live claim was taken: $(cat err)"
wait
# a claim is as old as its worker's start, not as the list
echo old >old && dflash-bench work -q aged -- true <old && mv aged/*/old%done aged/old && mv aged/old "$(echo aged/*-*)/old"
touch -d '1 hour ago' aged/*/old
dflash-bench work -q aged -- find aged -name 'old%*' -mmin +5 <old | grep . && echo "the claim looks given up"
# SIGTERM: the claim is given back
rm -rf claims made.* began.* slow
w 2>err1 &
for _ in $(seq 100); do [ -e slow ] && break || sleep 0.05; done
kill -TERM "$(ls claims/*/ | sed -n 's/^job-2%.*%\([0-9]*\)%[0-9]*$/\1/p')"
rc=0
wait $! || rc=$?
[ $rc = 143 ] && [ -e "$(echo claims/*)/job-2" ] || echo "SIGTERM: $rc $(ls claims/*)"

# what fails is told, does not hold up the rest, and is tried again
rm -rf claims
cat >job <<'END'
[ "$1" != job-4 ] || [ -e repaired ] || exit 3
[ "$1" = job-7 ] || touch "made.$1"
END
rm -f made.*
rc=0
w -q 2>err || rc=$?
[ $rc = 1 ] && [ "$(ls made.* | wc -l)" = 10 ] && grep -q 'job-4: failed' err && grep -q 'job-7: its command made no such file' err || cat err
touch repaired made.job-7
w -q 2>err && [ "$(ls made.* | wc -l)" = 12 ] || cat err
# refused
no() { # STATUS PATTERN COMMAND...
    rc=0 want=$1 p=$2
    shift 2
    "$@" >o 2>err || rc=$?
    [ $rc = "$want" ] && grep -q -e "$p" err || echo "$*: $rc $(cat err)"
}
no 2 'missing argument' dflash-bench work claims
no 2 'file: expected {} in it' dflash-bench work --file x claims -- true
no 3 'no names' dflash-bench work claims -- true </dev/null
for n in a/b .a 'a%b'; do no 3 "not a job's name" dflash-bench work claims -- true <<<"$n"; done
no 4 'No such file' dflash-bench work no/where -- true <<<a
no 1 'a: failed' dflash-bench work claims -- no-such-program <<<a
touch file && no 4 'Not a directory\|File exists' dflash-bench work file -- true <<<a
no 3 "two of one name" dflash-bench work claims -- true <<<$'a\na'

# a matrix by two workers, of which one is killed with all that it started
cp "$SRC"/data/prompts/code-1.txt "$SRC"/data/prompts/prose-1.txt .
dflash-bench matrix --target "$SRC/data/pair/target" --drafter one="$SRC/data/pair/drafter" --drafter two="$SRC/data/pair/dflash2" --types q8_0 --draft-types q8_0 --settings 'greedy:' \
    --plans 'w4:--width 4;tree:--tree 6' --out m -n 8 --runs 1 code-1.txt prose-1.txt >m.mk
setsid make -f m.mk work >out1 2>err1 &
first=$!
for _ in $(seq 200); do ls m/*.stream.jsonl >/dev/null 2>&1 && break || sleep 0.05; done
timeout 100 make -f m.mk work >out2 2>err2 &
second=$!
sleep 0.2
kill -9 -- "-$first"
wait $first 2>/dev/null || true
wait $second || { echo "the second worker fails" && tail -n 5 err2; }
[ "$(ls m/*.stream.jsonl | wc -l)" = 8 ] && [ "$(ls m/*.time.jsonl | wc -l)" = 8 ] || ls m
[ "$(grep -c '^| target-q8_0.gguf .* yes *|$' m/report.md)" = 8 ] && grep -qx '8 pairs of streams compared: 8 equal, 0 differ' m/report.md && [ -s m/report.html ] || cat m/report.md
grep -q '^\[[0-9]*/8\] [0-9:]* q8_0.two-q8_0.code.greedy.tree.time.jsonl' err2 || cat err2
[ -e m/verdict ] && make -f m.mk | grep -q 'Nothing to be done' || echo "make finds something to do"
make -f m.mk work >out 2>err && ! grep -q '^\[' err || echo "once more: $(cat err)"
# a stream that differs: the report is there and says so, and make fails
sed -i 's/"equal":true/"equal":false,"first_difference":1/' m/q8_0.one-q8_0.code.greedy.w4.stream.jsonl
rc=0
make -f m.mk >out 2>err || rc=$?
[ $rc = 2 ] && grep -q 'part at token 1' m/report.md && [ ! -e m/verdict ] || echo "a stream that differs: $rc"
echo checked
