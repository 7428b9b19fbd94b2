# What flags, prompts and states are refused for is said before a weight is read: here of models whose weights cannot be. Only
# what comes by a pipe is looked at afterwards.
. "$SRC/test/cli/outputs.inc"
inputs
weightless() { LC_ALL=C sed 's/\(blk\.0\.attn_norm\.weight.\{12\}\)\x00/\1\x1a/' "$1"; } # a norm of I32
weightless "$T" >t.gguf
weightless "$D" >d.gguf
printf '\5\0\0\0\377\377\377\377' >id
printf '\5\0\0\0\6' >odd
printf '' >none
dflash-prefill -q -m "$T" -o state <p
says() { # STATUS TEXT COMMAND: a line on stdout unless COMMAND ends so and says so
    try "$3" "$1" "$3"
    grep -q -e "$2" err || echo "$3: $(cat err)"
}
weights='I32 is not supported for a vector'
for g in "dflash-generate -q -m t.gguf -n 4" "dflash-prefill -q -m t.gguf -o o"; do
    says 3 "$weights" "$g <p"
    says 3 'token 1: id out of the vocabulary' "$g <id"
    says 3 'no multiple of 4' "$g <odd"
    says 3 'the prompt is empty' "$g <none"
    says 3 'the prompt is empty' "$g </dev/null"
    says 4 'Is a directory' "$g <."
    says 3 "$weights" "cat id | $g"
    says 2 'q4_0 or tq3_0, got q4_1' "$g --kv q4_1 <p"
    says 3 't.gguf: is a target (expected a drafter, got architecture qwen3)' "$g -d t.gguf <p"
    says 3 'd.gguf: is a drafter' "${g/t.gguf/d.gguf} <p"
done
echo '{"architectures":["Qwen3ForCausalLM"],"hidden_size":96,"intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":48,"hidden_act":"silu","vocab_size":300,"rms_norm_eps":1e-6,"rope_theta":1e6,"tie_word_embeddings":true,"max_position_embeddings":512}' >c.json
dflash-convert -q c.json --random 1 -o x.gguf
dflash-prefill -q -m x.gguf --imatrix im.gguf <p
says 3 'im.gguf: .* of another shape (expected 256 columns' 'dflash-prefill -q -m t.gguf --imatrix im.gguf <p'
G='dflash-generate -q -m t.gguf -n 4'
says 2 'prompt of 2, 4 new tokens and a block of 1, got 6' "$G --ctx 6 <p"
says 2 'does not fit the context (expected at most 1 tokens, got 2)' 'dflash-prefill -q -m t.gguf -o o --ctx 1 <p'
says 3 'at least two tokens' 'head -c 4 p >one; dflash-prefill -m t.gguf --nll <one; s=$?; rm one; exit $s'
says 2 'an id out of the vocabulary' "$G --stop 4096 <p"
says 2 'expected 2 to the 8' "$G -d d.gguf --block 9 <p"
says 2 'the block of 8, got 9' "$G -d d.gguf --width 9 <p"
says 2 'the block of 4, got 5' "$G -d d.gguf --block 4 --width 5 <p"
says 3 'another target' "$G --state state"
for g in "<p $G" '<p dflash-prefill -q -m t.gguf -o o' "cat p | $G" 'cat p | dflash-prefill -q -m t.gguf -o o'; do # before a pipe is read too
    says 2 'expected 0 to the [0-9]* layers that see every position, got 99' "$g --sparse 0.1 --sparse-dense 99"
    says 2 'whole blocks (expected a multiple of 128, got 100)' "$g --sparse 0.1 --chunk 100"
done
says 2 'every position, got 99' 'dflash-bench needles -q -m t.gguf --sparse 0.1 --sparse-dense 99'
says 4 'nostate: No such file' "$G --state nostate"
says 3 'not a snapshot' "$G --state t.gguf"
says 3 'holds no context for a drafter' "dflash-generate -q -m $T -d d.gguf -n 4 --state state"
says 2 'another chunk\|expected f16' "dflash-generate -q -m $T -d d.gguf -n 4 --state state --kv q4_1"
says 3 'another chunk' "dflash-generate -q -m $T -d d.gguf -n 4 --state state --chunk 4"
says 3 'stdin: token 1: id out' "dflash-generate -q -m $T -d d.gguf -n 4 --state state --append <id"
says 3 'id: token 1: id out' 'dflash-bench run -q -m t.gguf p id'
says 3 'none: the prompt is empty' 'dflash-bench run -q -m t.gguf p none'
says 4 'nofile: No such file' 'dflash-bench run -q -m t.gguf p nofile'
says 2 'the block of 8, got 9' 'dflash-bench run -q -m t.gguf -d d.gguf --width 9 p'
says 2 'ctx is too small' 'dflash-bench run -q -m t.gguf --ctx 6 p'
says 3 'id: token 1: id out' 'dflash-bench compare -q -m t.gguf --prompt id p q'
says 3 'id: token 1: id out' 'dflash-bench compare -q -m t.gguf --prompt p id q'
says 2 'ctx is too small (expected 576: --context 512 and 64 rows, got 100)' 'dflash-bench rows -q -m t.gguf --ctx 100'
echo checked
