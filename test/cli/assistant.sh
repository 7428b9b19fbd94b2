# An assistant of Gemma 4: made, shown, drafting over its target's caches, in states, misused.
t=$SRC/test/family/gemma4.json
make() { # OUT WIDTH-OF-TARGET
    {
        echo '{"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "use_ordered_embeddings": false,'
        echo "\"num_centroids\": 4, \"centroid_intermediate_top_k\": 2, \"backbone_hidden_size\": $2, \"text_config\":"
        sed -e '/"architectures"/,/\],/d' -e '/"final_logit_softcapping"/d' -e 's/\("num_kv_shared_layers": \)0/\14/' "$t"
        echo '}'
    } >a.json
    dflash-convert -q a.json --random 6 --type q8_0 -o "$1"
}
dflash-convert -q "$t" --random 3 --type q8_0 -o t.gguf
make a.gguf 192
make other.gguf 256
printf '\1\0\0\0\2\0\0\0\3\0\0\0\1\0\0\0\0\0\0\0' >p.tok
for more in "--temp 0" "--temp 3 --seed 5"; do
    # shellcheck disable=SC2086
    dflash-generate -q -m t.gguf $more -n 30 --ignore-eos <p.tok >plain.tok
    # shellcheck disable=SC2086
    dflash-generate -q -m t.gguf -d a.gguf $more --block 5 -n 30 --ignore-eos <p.tok | cmp - plain.tok
    # shellcheck disable=SC2086
    dflash-generate -q -m t.gguf -d a.gguf $more --block 5 --tree 14 -n 30 --ignore-eos <p.tok | cmp - plain.tok
done
echo "drafted as plain"
# the block is four rows: three proposals a cycle, and their logits behind a row of zeros
vocab=$(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' "$t")
for b in "" "--block 4" "--block 3"; do
    # shellcheck disable=SC2086
    dflash-generate -q -m t.gguf -d a.gguf $b -n 9 --ignore-eos --draft-logits logits --stats stats <p.tok >drafted.tok
    # shellcheck disable=SC2086
    dflash-generate -q -m t.gguf -d a.gguf $b --width 2 -n 2 --ignore-eos --draft-trace trace <p.tok >drafted.tok
    rows=$(($(stat -c %s logits) / 4 / vocab))
    zeros() { tail -c +$((4 * vocab * $1 + 1)) logits | head -c $((4 * vocab)) | tr -d '\0' | wc -c; } # bytes of row $1 that are not 0
    [ "$(zeros 0)" = 0 ] && [ "$(zeros 1)" != 0 ] && [ "$(zeros $((rows - 1)))" != 0 ] || echo "$b: draft logits"
    echo "block ${b:-as it comes}: $(($(stat -c %s trace) / 4)) proposals, $rows rows, $(sed 's/.*"accepted_histogram":\[\([^]]*\)\].*/\1/' stats | tr -cd , | wc -c) accepted at most"
done
dflash-prefill -q -m t.gguf -d a.gguf -o s.state <p.tok
dflash-generate -q -m t.gguf -d a.gguf --state s.state --temp 3 --seed 5 -n 30 --ignore-eos | cmp - plain.tok
dflash-generate -q -m t.gguf --state s.state --temp 3 --seed 5 -n 30 --ignore-eos | cmp - plain.tok
dflash-inspect --check s.state | tail -n 1
dflash-inspect s.state | grep "last hidden state"
dflash-inspect a.gguf | sed -n '/^drafter/,/^block/p'
dflash-inspect --pair t.gguf a.gguf | grep -v "^note\|hint" | sed 's/,.*//'
dflash-inspect --pair t.gguf other.gguf | grep misfit
refused() { # STATUS COMMAND...: its last line
    local want=$1 got=0
    shift
    "$@" <p.tok >/dev/null 2>err || got=$?
    [ "$got" = "$want" ] || { echo "exit $got: $*" && cat err && exit 9; }
    grep -Ev '^(hint|try)' err | tail -n 1
}
refused 3 dflash-generate -m t.gguf -d other.gguf -n 2
refused 3 dflash-generate -m a.gguf -n 2
refused 3 dflash-generate -m "$DATA/target-q8_0.gguf" -d a.gguf -n 2
refused 2 dflash-generate -m t.gguf -d a.gguf --draft-kv f32 -n 2
refused 2 dflash-generate -m t.gguf -d a.gguf --draft-mask-id 3 -n 2
# it is made without its target, in a matrix too
mkdir hf && cp a.json hf/config.json
refused 2 dflash-convert a.json --random 6 --target "$t" -o x.gguf
grep '^hint' err
echo >code-1.txt
dflash-bench matrix --target hf --drafter hf --types q8_0 --draft-types q8_0 --random 6 code-1.txt | grep @dflash-convert | sort -u
