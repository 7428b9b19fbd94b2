# Cells against those of another time: what is slower beyond its noise, what is not, and what cannot be compared.
cell() { # LABEL CRC PROCESSOR PLAIN_RUNS DRAFTED_RUNS [DEVICE]
    echo "{\"schema\":1,\"kind\":\"cell\",\"label\":\"$1\",\"target\":{\"file\":\"t.gguf\"},\"drafter\":{\"file\":\"d.gguf\"},\"prompts\":1,\"prompt_tokens\":9,\"settings\":{\"n\":64},\
\"streams\":{\"crc32\":\"$2\",\"tokens\":64},\"machine\":{\"device\":\"${6-cpu}\",\"processor\":\"$3\",\"threads\":2,\"isa\":\"avx2\",\"kernels\":\"auto\"},\"read_ceiling_bytes_per_s\":2e10,\
\"plain\":{\"decode_tokens_per_s\":{\"median\":1,\"each\":[$4]}},\"drafted\":{\"decode_tokens_per_s\":{\"median\":1,\"each\":[$5]},\"tau\":2.5},\"equal\":true}"
}
base=100,100.1,100.2,100.3,100.4
try() { # STATUS VERDICT NOW... : the cell's row ends so
    want=$1 verdict=$2 rc=0
    shift 2
    "$@" >now
    dflash-bench report -q --baseline then now >out 2>err || rc=$?
    got=$(sed -n '/| verdict/,/^$/p' out | sed -n '3s/ *|$//p' | sed 's/.*| *\([^|]*| [^|]*\)$/\1/; s/  */ /g')
    [ "$rc" = "$want" ] && [ "$got" = "$verdict" ] || echo "expected $want '$verdict', got $rc '$got' ($*)"
    [ "$rc" = 0 ] || grep -q '^dflash-bench report: warning: ' err || echo "nothing on stderr ($*)"
}
cell a 1 P $base $base >then
try 0 'same | no difference seen' cell a 1 P $base $base
try 0 'same | faster' cell a 1 P 110,110.1,110.2,110.3,110.4 110,110.1,110.2,110.3,110.4
try 1 'same | SLOWER' cell a 1 P 90,90.1,90.2,90.3,90.4 90,90.1,90.2,90.3,90.4
try 1 'same | SLOWER plain' cell a 1 P 90,90.1,90.2,90.3,90.4 $base
try 1 'same | SLOWER drafted' cell a 1 P $base 90,90.1,90.2,90.3,90.4
try 0 'same | no difference seen' cell a 1 P 99,99.1,99.2,99.3,99.4 $base  # within the slack
try 0 'same | no difference seen' cell a 1 P 70,80,90,95,110 $base          # within its own noise
# the rank test: 5 and 5 runs of which 2 pairs, then 3, lie the other way: p = 0.032 and 0.056
try 1 'same | SLOWER plain' cell a 1 P 95,95.1,95.2,95.3,100.15 $base
try 0 'same | no difference seen' cell a 1 P 95,95.1,95.2,95.3,100.25 $base
try 0 'same | too few runs' cell a 1 P 50,50,50,50 50,50,50,50
try 1 'DIFFER | no difference seen' cell a 2 P $base $base
try 1 'same | another machine' cell a 1 Q 50,50,50,50,50 50,50,50,50,50 # no speed was compared
grep -q 'no speed was compared' err && grep -q 'no speed was compared' out || cat out err
try 1 'DIFFER | another machine' cell a 2 Q $base $base
try 1 '- | another machine' cell a 2 P $base $base cuda:H100 # streams of another device are others
try 1 '- | not in the baseline' cell b 1 P $base $base       # nothing was compared
rc=0
dflash-bench report -q --baseline then --slack 0.2 <(cell a 1 P 90,90.1,90.2,90.3,90.4 $base) >out || rc=$?
[ $rc = 0 ] || echo "--slack is not seen"
{ cell a 1 P $base $base && cell b 1 Q $base $base; } >then # one of several is enough
{ cell a 1 P $base $base && cell b 1 P $base $base; } >now
dflash-bench report -q --baseline then now >out || cat out
# a cell of the baseline that is not there, and one that is new
{ cell a 1 P $base $base && cell c 1 P $base $base; } >then
{ cell a 1 P $base $base && cell d 1 P $base $base; } >now
dflash-bench report -q --baseline then now >out 2>err && echo "a cell that was not measured passes"
grep -q '| c .*NOT MEASURED' out && grep -q '| d .*not in the baseline' out || cat out
# sessions of the baseline that lie apart are noise too
{ cell a 1 P $base $base && cell a 1 P 90,90.1,90.2,90.3,90.4 $base; } >then
cell a 1 P 89,89.1,89.2,89.3,89.4 $base >now
dflash-bench report -q --baseline then now >out || { echo "the spread of sessions is not seen" && cat out; }
# a baseline of several machines: each cell is held against its own, wherever that stands
for first in Q P; do
    { cell a 1 $first $([ $first = Q ] && echo $base $base || echo 50,50.1,50.2,50.3,50.4 50,50.1,50.2,50.3,50.4) &&
        cell a 1 $([ $first = Q ] && echo P 50,50.1,50.2,50.3,50.4 50,50.1,50.2,50.3,50.4 || echo Q $base $base); } >then
    try 1 'same | SLOWER' cell a 1 Q 60,60.1,60.2,60.3,60.4 60,60.1,60.2,60.3,60.4
    try 0 'same | faster' cell a 1 P 60,60.1,60.2,60.3,60.4 60,60.1,60.2,60.3,60.4
done
{ cell a 1 P $base $base && cell a 2 P $base $base cuda:H100; } >then
try 1 'DIFFER | no difference seen' cell a 2 P $base $base # its device's streams are the earlier line's
# many runs: by the normal distribution
many() { seq -s, "$1" 0.1 "$2"; }
cell a 1 P "$(many 100 105)" "$(many 100 105)" >then
cell a 1 P "$(many 90 95)" "$(many 100 105)" >now
dflash-bench report -q --baseline then now >out 2>err && echo "51 slower runs pass"
grep -q 'SLOWER plain' out || cat out
# a drafted stream that differs, without a baseline; -o gets its report all the same
cell a 1 P $base $base | sed 's/"equal":true/"equal":false/' >now
rc=0
dflash-bench report now -o r.md 2>err || rc=$?
[ $rc = 1 ] && grep -q '| NO ' r.md && grep -q 'A drafted stream differs' err || echo "a stream that differs: $rc"
rc=0
echo '{"schema":1,"kind":"compare","a":"x","b":"y","equal":false,"first_difference":3}' | dflash-bench report -q - >out 2>err || rc=$?
[ $rc = 1 ] && grep -qx -- '- x and y part at token 3' out || echo "a comparison that differs: $rc"
# real cells: a build against itself writes the same streams, another seed others
printf '\5\0\0\0\6\0\0\0' >p
R="dflash-bench run -q -m $DATA/target-q8_0.gguf -d $DATA/drafter-q8_0.gguf -n 8 --runs 1 --warmup 0 --ignore-eos --tag class=x p"
$R --temp 0.9 --seed 1 >then && $R --temp 0.9 --seed 1 >now && dflash-bench report -q --baseline then now >out || cat out
grep -q '| same .*| too few runs' out || cat out
$R --temp 0.9 --seed 2 | sed 's/"seed":2/"seed":1/' >now
dflash-bench report -q --baseline then now >out 2>/dev/null && cat out
grep -q '| DIFFER ' out || cat out
# other types of some layers, or a key's other value, are another cell
for f in "--kv-layers 0-1=q8_0" "--draft-kv q8_0" "--override-kv qwen3.rope.freq_base=float:12345"; do
    # shellcheck disable=SC2086
    ${R% p} $f p >now
    dflash-bench report -q --baseline then now >out 2>/dev/null || true
    grep -q '| not in the baseline' out || cat out
done
echo checked
