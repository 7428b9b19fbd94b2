# Block-sparse prompts: every block is dense attention to the byte, pieces change nothing, states carry the flags, and what is
# refused.
t=$DATA/target-bf16.gguf d=$DATA/drafter-bf16.gguf
dflash-tokenize -m "$t" <"$SRC/docs/snapshot.md" | head -c 7000 >p # 1,750 tokens
head -c 4096 p >first                                              # 1,024
tail -c +4097 p >rest
run() { dflash-generate -q -m "$t" -n 24 --ignore-eos "$@"; }
nll() { dflash-prefill -q -m "$t" --nll "$@" <p; }
cmp <(nll) <(nll --sparse 0 --sparse-dense 0) && echo 'every block: dense'
cmp <(nll) <(nll --sparse 0.1 --sparse-dense 8) && echo 'every layer dense: dense'
cmp -s <(nll) <(nll --sparse 0.5 --sparse-dense 0) || echo 'some blocks: not dense'
cmp -s <(nll --sparse 0.5) <(nll --sparse 0.5 --sparse-dense 0) || echo 'the first layers are dense'
for chunk in 128 384 1024; do cmp <(nll --sparse 0.5 --sparse-dense 0) <(nll --sparse 0.5 --sparse-dense 0 --chunk $chunk) && echo "chunk $chunk: the same"; done
for kv in q8_0 q5_0,q4_0 f32,bf16; do
    cmp <(nll --kv $kv) <(nll --kv $kv --sparse 0 --sparse-dense 0) && echo "$kv: every block: dense"
done
run --sparse 0.5 --sparse-dense 0 <p >plain
run -d "$d" --sparse 0.5 --sparse-dense 0 --stats s.json <p >drafted
cmp plain drafted && echo 'drafted: the same'
grep -q '"sparse":{"alpha":0.5,"dense":0,"density":0\.[0-9]*,"layers":\[{"layer":0,"density":0\.[0-9]*,"seconds":[0-9.e-]*},' s.json && echo 'statistics have density and time'
# states
dflash-prefill -q -m "$t" -d "$d" --sparse 0.5 --sparse-dense 0 -o whole <p
dflash-prefill -q -m "$t" -d "$d" --sparse 0.5 --sparse-dense 0 -o part <first
dflash-prefill -q -m "$t" -d "$d" --state part -o joined <rest
cmp whole joined && echo 'in pieces that end with a block: the same state'
run -d "$d" --state whole | cmp - plain && echo 'resumed: the same'
run -d "$d" --state part --append <rest | cmp - plain && echo 'appended: the same'
dflash-inspect whole | grep '^prompts'
dflash-inspect --json whole | grep -o '"sparse":{[^}]*}'
dflash-inspect --check whole >/dev/null && echo 'the state is whole'
dflash-prefill -q -m "$t" -o dense <first
says() { # status, what stderr holds, command
    rc=0
    "${@:3}" <p >out 2>err || rc=$?
    [ "$rc" = "$1" ] && [ ! -s out ] && grep -q -e "$2" err || echo "$*: status $rc: $(cat err)"
}
says 3 'was made of other sparse prompts (expected --sparse 0.25 --sparse-dense 0, got --sparse 0.5 --sparse-dense 0)' run -d "$d" --state whole --sparse 0.25
says 3 'was made of other sparse prompts (.* got --sparse 0.5 --sparse-dense 0)' dflash-prefill -m "$t" --state whole --sparse-dense 1
says 3 'was made of dense prompts (expected --sparse 0.5 --sparse-dense 2)' run --state dense --sparse 0.5
says 2 '--sparse-dense needs --sparse ALPHA' run --sparse-dense 1
says 2 '--sparse-dense 1: the state is of dense prompts (expected no such flag)' run --state dense --sparse-dense 1
says 2 '--sparse-dense: out of range (expected 0 to the 8 layers that see every position, got 9)' run --sparse 0.1 --sparse-dense 9
says 2 '--chunk: a sparse prompt runs in whole blocks (expected a multiple of 128, got 500)' run --sparse 0.1 --chunk 500
says 2 "try 'dflash-generate --help'" run --sparse -1
says 2 '--sparse: --serve runs prompts in pieces' dflash-generate -m "$t" --serve --sparse 0.1
