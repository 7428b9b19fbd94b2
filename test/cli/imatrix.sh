# An importance matrix is gathered over two runs, reads back, weighs a quantised file's error, and is recorded there.
dflash-tokenize -m "$DATA/target-f16.gguf" <"$SRC/data/prompts/python-8-long.txt" >a.tok
dflash-tokenize -m "$DATA/target-f16.gguf" <"$SRC/data/prompts/manual-8-long.txt" | head -c 4000 >b.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix im.gguf --dataset one <a.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix im.gguf --dataset two --threads 1 <b.tok
dflash-inspect im.gguf | grep -E 'general.type|datasets|chunk_size'
# the same rows in another order add up to the same, but for the file's float32 between the runs (2^-24 = 6e-8)
head -c 600 a.tok >a1.tok # the scalar set is slow
head -c 400 b.tok >b1.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix straight.gguf --dataset one <a1.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix straight.gguf --dataset two --threads 1 <b1.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix turned.gguf --dataset two --isa scalar <b1.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix turned.gguf --dataset one <a1.tok
dflash-inspect --diff straight.gguf turned.gguf | tail -n 1 | awk '{ print $3, $4, ($NF < 1e-7) ? "equal" : "different" }'
# a state beside it is the state without it
dflash-prefill -q -m "$DATA/target-f16.gguf" -o with --imatrix im2.gguf <a.tok
dflash-prefill -q -m "$DATA/target-f16.gguf" -o without <a.tok
cmp with without && echo the same state
dflash-quantize -q "$DATA/target-f16.gguf" -o plain.gguf --type q4_k_m
dflash-quantize -q "$DATA/target-f16.gguf" -o weighed.gguf --type q4_k_m --imatrix im.gguf
dflash-quantize -q "$DATA/target-f16.gguf" --type q4_k_m --imatrix im.gguf --threads 1 | cmp - weighed.gguf && echo any threads
cmp -s plain.gguf weighed.gguf || echo weighed differently
dflash-inspect weighed.gguf | grep quantize.imatrix
dflash-quantize -q weighed.gguf --type f16 -o again.gguf 2>/dev/null # the keys say nothing about this file
dflash-inspect again.gguf | grep -c quantize.imatrix || true
# a prompt's likelihood suffers less
nll() { dflash-prefill -q -m "$1" --nll <b.tok | sed -n 's/nll //p'; }
dflash-quantize -q "$DATA/target-f16.gguf" -o p4.gguf --type q4_0
dflash-quantize -q "$DATA/target-f16.gguf" -o w4.gguf --type q4_0 --imatrix im.gguf
awk "BEGIN { print ($(nll w4.gguf) < $(nll p4.gguf)) ? \"better\" : \"worse\" }"
# the older binary form: one product of 256 x (1, 2, 16), one chunk, a data set's name
printf '\1\0\0\0\25\0\0\0blk.0.ffn_down.weight\1\0\0\0\0\3\0\0' >old.dat
for i in {1..256}; do printf '\0\0\200\77\0\0\0\100\0\0\200\101'; done >>old.dat
printf '\1\0\0\0\3\0\0\0two' >>old.dat
dflash-quantize "$DATA/target-f16.gguf" -o old.gguf --type q4_k_m --imatrix old.dat 2>err
grep -o '[0-9]* tensors have no importance' err
dflash-inspect old.gguf | grep quantize.imatrix
for f in plain old; do dflash-quantize -q $f.gguf -o $f.f32 --type f32 2>/dev/null; done
dflash-inspect --diff plain.f32 old.f32 | tail -n 1 | cut -d' ' -f1-6
dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix old.dat <b.tok 2>&1 || echo status $?
head -c 100 old.dat >cut.dat
dflash-quantize -q "$DATA/target-f16.gguf" -o cut.gguf --type q4_k --imatrix cut.dat 2>&1 || echo status $?
dflash-quantize -q "$DATA/target-f16.gguf" -o cut.gguf --type q4_k --imatrix b.tok 2>&1 || echo status $?
ls cut.gguf 2>/dev/null || true
# two runs that add to one file at a time: the one that ends last would drop what the other gathered, and is refused
mkfifo in
for name in there new; do
    [ $name = new ] || cp im.gguf both.gguf
    exec 5<>in
    dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix both.gguf -o state <in 2>err 5>&- &
    while ! { ls both.gguf.*.tmp || ls -l /proc/$!/fd | grep -c '(deleted)$' | grep 2; } >/dev/null 2>&1; do sleep 0.01; done
    dflash-prefill -q -m "$DATA/target-f16.gguf" --imatrix both.gguf --dataset first <b.tok
    cp both.gguf want
    cat a.tok >&5
    exec 5>&-
    s=0
    wait $! || s=$?
    cmp both.gguf want
    echo "status $s" "$(sed 's/(.*)//' err)" "$(ls both.gguf* state 2>/dev/null)"
    rm -f both.gguf
done
