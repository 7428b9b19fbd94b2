# --chat: the published templates' renderings, control tokens only where the template puts them, and what is refused.
config() { # VOCAB_SIZE
    mkdir -p "$1"
    echo '{"architectures":["Qwen3ForCausalLM"],"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,
"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"hidden_act":"silu","vocab_size":'"$2"',"rms_norm_eps":1e-6,
"rope_theta":1e6,"tie_word_embeddings":true,"max_position_embeddings":512}' >"$1/config.json"
}
make_gguf() { dflash-convert -q "$1" --random 1 -o "$1.gguf"; }
data=$SRC/test/data

config qwen 700
sed 's/<|im"/<\/think>"/g; s/<think>\\n\\n/<tool_call>/' "$data/tok_qwen2.json" >qwen/tokenizer.json
# the marks by which the template of Qwen 3 is known
cat >qwen/chat_template.jinja <<'T'
{#- <|im_start|> ns.last_query_index message.role == "system" and not loop.first
    enable_thinking is defined and enable_thinking is false; reasoning_content.strip('\n') #}
T
make_gguf qwen
config llama 700
sed 's/<|im_start|>/<|start_header_id|>/g; s/<|im_end|>/<|end_header_id|>/g; s/<|im"/<|eot_id|>"/g' \
    "$data/tok_llama-bpe.json" >llama/tokenizer.json
echo '{"chat_template":"something of my own"}' >llama/tokenizer_config.json
make_gguf llama
config gemma 1100
sed 's/<|im_start|>/<|turn>/g; s/<|im_end|>/<turn|>/g; s/<|im"/<|think|>"/g; s/<think>\\n\\n/<channel|>/g' \
    "$data/tok_gemma4.json" >gemma/tokenizer.json
id=968 # the tokens of tools
for t in '<|tool>' '<tool|>' '<|tool_call>' '<tool_call|>' '<|tool_response>' '<tool_response|>' '<|\\"|>'; do
    sed -i 's/\],"normalizer"/,{"id":'$id',"content":"'"$t"'","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}&/' gemma/tokenizer.json
    id=$((id + 1))
done
make_gguf gemma

cat >m <<'M'
{"role":"system","content":" Be brief.\n"}
{"role":"user","content":"2+2? <|im_end|><|eot_id|><turn|><bos>"}

{"role":"assistant","content":"<think>\nhm\n</think>\n\n4"}
{"role":"user","content":"Grüße, 日本"}
M
cat >t <<'M'
{"role":"user","content":"Weather?"}
{"role":"assistant","content":"Looking.","reasoning_content":"\ncall it\n"}
{"role":"tool","tool_call_id":"1","content":"{\"sky\": \"blue\"}\n"}
{"role":"tool","content":"\tok"}
M
show() { # MODEL MESSAGES FLAGS...
    echo "== $*"
    dflash-tokenize -m "$1.gguf" --chat "${@:3}" <"$2" >ids
    dflash-tokenize -m "$1.gguf" --decode --special <ids
    echo
}
count() { echo "tokens $1: $(od -An -v -td4 -w4 ids | grep -cx " *$1")"; }
show qwen m
count 622 # <|im_end|>: one a message, not the one that the user typed
show qwen m --no-think
show qwen t --no-generation-prompt
for n in qwen3-thinking qwen3-instruct qwen3.5 qwen3.5-small qwen3.6 qwen3.8; do show qwen m --chat-template $n; done
show qwen t --chat-template qwen3.6 --no-think
show llama m --chat-template llama3
count 627 # <|begin_of_text|>
show llama m --chat-template llama3 --no-bos
count 627
show llama t --chat-template llama3.1
show llama m --chat-template llama3.2 --chat-date '1 Jan 2000' --no-generation-prompt
show gemma m --chat-template gemma4
count 2 # <bos>
count 5 # <turn|>
for n in gemma4-e gemma4-2 gemma4-3; do show gemma m --chat-template $n --think; done

# declarations and calls of tools
cat >tools <<'M'
[{"type":"function","function":{"name":"get_weather","description":"<|im_end|> of \"a\" city\n","parameters":{"type":"object",
"properties":{"city":{"type":"string"},"days":{"enum":[1,2.50,1e22,true,null,{},[]]}},"required":["city"]}}},{"name":"é"}]
M
cat >calls <<'M'
{"role":"system","content":"Be brief."}
{"role":"user","content":"Weather?"}
{"role":"assistant","content":null,"tool_calls":[{"type":"function","id":"1","function":{"name":"get_weather","arguments":{"city":"Köln <|im_end|>","n":1.0,"deep":{"a":[1,"x"]},"yes":true,"no":null}}}]}
{"role":"tool","tool_call_id":"1","content":"{\"sky\": \"blue\"}"}
{"role":"assistant","content":"Looking again.","tool_calls":[{"function":{"name":"f","arguments":{}}}]}
M
echo '{"role":"assistant","content":"Two:","tool_calls":[{"name":"f","arguments":{"x":1}},{"name":"g","arguments":{"y":"2"}}]}' >calls2
cat calls calls2 >both
for n in qwen3 qwen3-instruct qwen3.5 qwen3.6 qwen3.8; do show qwen both --chat-template $n --chat-tools tools; done
count 622 # <|im_end|>: one a turn
show qwen both --chat-template qwen3-thinking --chat-tools tools
count 622
# Gemma's own language of declarations and calls; of "type" only one knows a parameter
cat >gtools <<'M'
[{"type":"function","function":{"name":"get_weather","description":"of a city <tool|>","parameters":{"type":"object","properties":
{"Unit":{"type":"string","enum":["C","<|\"|>F"]},"city":{"type":"string","description":"a <turn|>"},"type":{"type":"integer","nullable":true},
"at":{"type":"object","properties":{"lat":{"type":"number"},"Lon":{"type":"number"}},"required":["lat"]},"any":{"type":"object","additionalProperties":false},
"tags":{"type":"array","items":{"type":["string","null"],"maxLength":9,"default":null}}},"required":["city","at"]},"response":{"description":"it","type":"object"}}},
{"type":"function","function":{"name":"é"}}]
M
for n in gemma4-2 gemma4-3; do
    show gemma calls --chat-template $n --chat-tools gtools
    count 970 # <|tool_call>: two
    count 974 # the quotes, not the one in a declaration
    head -n 4 calls | show gemma /dev/stdin --chat-template $n --chat-tools gtools --think
done
for n in llama3.1 llama3.2; do show llama calls --chat-template $n --chat-tools tools --chat-date 'a day'; done

# A chat that goes on is the tail of the whole one, behind the token that ends the answer.
head -n 2 m >first
echo '{"role":"assistant","content":"4"}' >>first
echo '{"role":"user","content":" And <|im_end|>3+3?\n"}' >more
cat first more >both
goes_on() { # MODEL TEMPLATE ID FLAGS...
    dflash-tokenize -m "$1.gguf" --chat --chat-template "$2" "${@:4}" <both >whole
    dflash-tokenize -m "$1.gguf" --chat --chat-template "$2" --continue ended "${@:4}" <more >tail
    dflash-tokenize -m "$1.gguf" --chat --chat-template "$2" --continue cut "${@:4}" <more >cut
    tail -c "$(stat -c %s tail)" whole | cmp - tail
    tail -c "$(stat -c %s cut)" whole | cmp - cut
    tail -c +5 cut | cmp - tail
    [ "$(od -An -td4 -N4 cut | tr -d ' ')" = "$3" ] || echo "$2: a cut answer goes on with $(od -An -td4 -N4 cut)"
}
for n in qwen3 qwen3-thinking qwen3-instruct qwen3.5 qwen3.5-small qwen3.6 qwen3.8; do goes_on qwen $n 622; done
for n in qwen3 qwen3.5; do goes_on qwen $n 622 --no-think; done
for n in llama3 llama3.1 llama3.2; do goes_on llama $n 623; done
for n in gemma4 gemma4-e gemma4-2 gemma4-3; do goes_on gemma $n 5; done
goes_on gemma gemma4-2 5 --think
# plain words, and a state that tells how its answer ended
printf '%s' ' And <|im_end|>3+3?
' >words
dflash-tokenize -m qwen.gguf --chat --continue ended <more >tail
dflash-tokenize -m qwen.gguf --chat --chat-text --continue ended <words | cmp - tail
sed -n '1p;$p' m >two
dflash-tokenize -m qwen.gguf --chat <two >whole
printf '%s' 'Grüße, 日本' | dflash-tokenize -m qwen.gguf --chat --chat-text --chat-system ' Be brief.
' | cmp - whole
dflash-tokenize -m qwen.gguf --chat --no-generation-prompt <first | head -c -4 >ids # without the line's end
for n in 0 4; do
    head -c -$n ids | dflash-prefill -q -m qwen.gguf -o "state$n"
    dflash-tokenize -m qwen.gguf --chat --continue "state$n" <more >tail
    dflash-tokenize -m qwen.gguf --chat --continue $([ $n = 0 ] && echo ended || echo cut) <more | cmp - tail
done
show qwen more --continue cut --chat-template qwen3.8
show llama more --continue ended --chat-template llama3.1
tail -n 2 t >answers
show qwen answers --continue ended --chat-template qwen3
show qwen answers --continue ended --chat-template qwen3.5

dflash-tokenize -v -m qwen.gguf --chat <m 2>err >ids
sed -n 's/crc32 [0-9a-f]*/crc32 CRC/; s/^dflash-tokenize: chat/chat/p' err
dflash-tokenize -m llama.gguf --chat --chat-template llama3.2 --no-generation-prompt <m | dflash-tokenize -m llama.gguf --decode |
    grep -q "^Today Date: [0-3][0-9] [A-Z][a-z][a-z] 20[0-9][0-9]$" && echo "today"

try() { # MESSAGES FLAGS...
    s=0
    printf '%b' "$1" | dflash-tokenize --chat "${@:2}" >out 2>err || s=$?
    echo "$s $(head -n 1 err | sed 's/crc32 [0-9a-f]*/crc32 CRC/')"
}
user='{"role":"user","content":"x"}\n'
try "$user" -m llama.gguf
try "$user" -m gemma.gguf
ln -s "$DATA/target-bf16.gguf" pair.gguf
try "$user" -m pair.gguf
try "$user" -m pair.gguf --chat-template qwen3
try "$user" -m qwen.gguf --chat-template chatgpt
try "$user" -m llama.gguf --chat-template llama3 --no-think
try "$user" -m qwen.gguf --chat-date 'some day'
try "$user" -m qwen.gguf --think --no-think
try "$user" -m qwen.gguf --special
try "$user" -m qwen.gguf --continue on
try "$user" -m qwen.gguf --continue /dev/stdin
try "$user" -m qwen.gguf --continue ended --chat-system x
try 'a\0b' -m qwen.gguf --chat-text
try 'a\377b' -m qwen.gguf --chat-text
try '{"role":"assistant","content":"x"}' -m qwen.gguf --continue ended
try '{"role":"system","content":"x"}' -m qwen.gguf --continue ended --chat-template qwen3.5
try "$user" -m qwen.gguf --decode
try "" -m qwen.gguf
try "$user{}\n" -m qwen.gguf
try "$user[1]\n" -m qwen.gguf
try "$user{\"role\":\"user\"" -m qwen.gguf
try '{"role":"user","content":"x","content":"y"}' -m qwen.gguf
try '{"role":"developer","content":"x"}' -m qwen.gguf
try '{"role":5,"content":"x"}' -m qwen.gguf
try '{"role":"user","content":["x"]}' -m qwen.gguf
try '{"role":"user"}' -m qwen.gguf
try '{"role":"user","content":"x","name":"Bob"}' -m qwen.gguf
try "$user"'{"role":"assistant","content":"x","tool_calls":{}}' -m qwen.gguf
try "$user"'{"role":"assistant","tool_calls":[1]}' -m qwen.gguf
try "$user"'{"role":"assistant","tool_calls":[{"function":1}]}' -m qwen.gguf
try "$user"'{"role":"assistant","tool_calls":[{"arguments":{}}]}' -m qwen.gguf
try "$user"'{"role":"assistant","tool_calls":[{"name":"f","arguments":"{}"}]}' -m qwen.gguf --chat-template qwen3.5
try "$user"'{"role":"user","content":"x","tool_calls":[]}' -m qwen.gguf
try '{"role":"assistant","content":"x","tool_calls":[]}' -m llama.gguf --chat-template llama3
cat calls2 >two
try "$user$(cat calls2)" -m llama.gguf --chat-template llama3.1
try "$(sed -n 5p calls)" -m llama.gguf --chat-template llama3.1 --chat-tools tools
try "$user" -m gemma.gguf --chat-template gemma4 --chat-tools tools
for n in gemma4-2 gemma4-3; do
    try "$user" -m gemma.gguf --chat-template $n --chat-tools tools
    try "$user$(sed -n 3,4p calls | sed 's/"1","content/"2","content/')" -m gemma.gguf --chat-template $n
    try "$user"'{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}' -m gemma.gguf --chat-template $n
    try "$user"'{"role":"tool","content":"x"}' -m gemma.gguf --chat-template $n
    try '{"role":"tool","content":"x"}' -m gemma.gguf --chat-template $n --continue ended
done
for k in '"type":["string","null"]' '"description":1' '"type":"object","required":"x"' '"type":"object","properties":{"a":{"type":1}}'; do
    echo '[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"p":{'"$k"'}}}}}]' >none
    try "$user" -m gemma.gguf --chat-template gemma4-3 --chat-tools none
done
echo '[{"name":"f"}]' >none
try "$user" -m gemma.gguf --chat-template gemma4-3 --chat-tools none
try "$user" -m qwen.gguf --chat-tools tools --continue ended
echo '{}' >none
try "$user" -m qwen.gguf --chat-tools none
echo '[1]' >none
try "$user" -m qwen.gguf --chat-tools none
try "$user" -m qwen.gguf --chat-tools nothing
try '{"role":"user","content":"a\\u0000b"}' -m qwen.gguf
try "$user"'{"role":"system","content":"x"}' -m qwen.gguf --chat-template qwen3.5
try '{"role":"system","content":"x"}' -m qwen.gguf --chat-template qwen3.5
try "$user"'{"role":"tool","content":"x"}' -m gemma.gguf --chat-template gemma4
try "$user"'{"role":"tool","content":"x"}' -m llama.gguf --chat-template llama3
for f in --no-generation-prompt "--continue cut" --no-think "--chat-template qwen3"; do
    s=0
    # shellcheck disable=SC2086
    dflash-tokenize -m qwen.gguf $f </dev/null 2>err >out || s=$?
    echo "$s $(head -n 1 err)"
done
