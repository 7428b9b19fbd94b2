#!/bin/bash
# clients.sh - the clients of data/clients with a process that listens.
#
# usage: test/clients/clients.sh BIN_DIR PAIR_DIR
# Without Python, or without the openai package, what needs them is skipped, and says so.
set -u
bin=$(cd "$1" && pwd) pair=$(cd "$2" && pwd)
src=$(cd "$(dirname "$0")/../.." && pwd)
export PATH="$bin:$PATH" LC_ALL=C PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d)
pids=()
trap 'for p in "${pids[@]}"; do kill -9 "$p" 2>/dev/null; done 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 4
failed=0
result() { # NAME STATUS: 77 is skipped, which counts as a check that was made
    case $2 in
    0) echo "ok   clients/$1" ;;
    77) echo "ok   clients/$1 skipped: $(tail -n 1 out)" ;;
    *)
        echo "FAIL clients/$1"
        tail -n 5 out err front.err server.err 2>/dev/null | sed 's/^/    /'
        failed=1
        ;;
    esac
}
python=$(command -v python3)
skip() { echo "$1" >out; }

if [ -n "$python" ]; then
    "$python" "$src/test/clients/parts.py" "$src/data/clients/http.py" >out 2>err
    result parts $?
else
    skip "no python3"
    result parts 77
fi

dflash-generate -q -m "$pair/target-bf16.gguf" -d "$pair/drafter-bf16.gguf" --width 8 --ctx 1024 --chunk 64 --listen s --root . 2>server.err &
pids+=($!)
for _ in {1..200}; do [ ! -S s ] || break; sleep 0.05; done

# the client in the shell says what dflash run says
dflash run -q -m "$pair/target-bf16.gguf" -n 24 'def f(n):
' >want
"$src/data/clients/ask.sh" -m "$pair/target-bf16.gguf" -n 24 s 'def f(n):
' >got 2>err
s=$?
[ $s = 77 ] || { cmp want got >out 2>&1; s=$?; }
[ $s != 77 ] || skip "$(cat err)"
result shell $s

# The pair has no chat template: ids of another vocabulary, whose file has one, stand for its own.
chat_model() {
    mkdir qwen
    sed 's/<|im"/<\/think>"/g; s/<think>\\n\\n/<tool_call>/' "$src/test/data/tok_qwen2.json" >qwen/tokenizer.json
    echo '{"architectures":["Qwen3ForCausalLM"],"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,
"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"hidden_act":"silu","vocab_size":700,"rms_norm_eps":1e-6,
"rope_theta":1e6,"tie_word_embeddings":true,"max_position_embeddings":32768}' >qwen/config.json
    dflash-convert -q qwen --random 1 -o q.gguf
}
front() { # NAME FLAG...
    "$python" "$src/data/clients/http.py" --socket s --port 0 --name own -q "${@:2}" >"$1" 2>front.err &
    pids+=($!)
    for _ in {1..200}; do [ ! -s "$1" ] || break; sleep 0.05; done
}
if [ -n "$python" ]; then
    chat_model
    front front --model "$pair/target-bf16.gguf"
    front chats --model q.gguf --chat-template qwen3
    "$python" "$src/test/clients/openai_client.py" "$(sed 's/.* at //' front)" "$(sed 's/.* at //' chats)" want >out 2>err
    result openai $?
else
    skip "no python3"
    result openai 77
fi
[ "$failed" = 0 ]
