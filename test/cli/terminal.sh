# A file that holds terminal commands: no output of a program passes them on, and JSON lines stay whole. The names and a token
# are changed in place, to as many bytes: ESC, U+009B (as UTF-8, and raw) and bytes that are no UTF-8.
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
calm() { # NAME COMMAND...: nothing but printable UTF-8 comes out
    name=$1
    shift
    "$@" >out 2>&1 || true
    [ -s out ] || echo "$name: no output"
    ! grep -qaP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' out || echo "$name: control characters"
    iconv -f UTF-8 -t UTF-8 out >/dev/null 2>&1 || echo "$name: not UTF-8"
}
sed 's/<|mask|>/\x1b[2J\xc2\x9bm\xff/' "$T" >token.gguf
sed 's/blk\.3\.attn_norm/blk.3.\xc2\x9btn_nor\xff/' "$T" >tensor.gguf
sed 's/general\.name/general\xc2\x9b\xffme/; s/tokenizer\.ggml\.normalizer/tokenizer.ggml.normali\xc2\x9b\xff/' "$T" >key.gguf
cmp -s token.gguf "$T" || cmp -s tensor.gguf "$T" || cmp -s key.gguf "$T" || echo changed
calm show dflash-inspect --tensors token.gguf
calm show-tensor dflash-inspect --tensors tensor.gguf
calm show-key dflash-inspect key.gguf
calm check dflash-inspect --check tensor.gguf
calm pair dflash-inspect --pair token.gguf "$D"
grep '^misfit.*tokenizer' out
calm json dflash-inspect --json --pair token.gguf "$D"
grep -c '"subject":"tokenizer"' out
calm diff dflash-inspect --diff tensor.gguf "$T"
calm quantize dflash-quantize tensor.gguf -o q.gguf --type q8_0
dflash-quantize -q tensor.gguf --json -o q2.gguf --type q8_0 >out || echo "$?"
wc -l <out
calm generate dflash-generate -m tensor.gguf -n 1 </dev/null
for f in tensor key; do
    calm json-$f dflash-inspect --tensors --json $f.gguf
    lines() { grep -vc '"kind":"identity"' || true; } # which a file has that is a model
    dflash-inspect --tensors --json "$T" | lines | cmp - <(lines <out) || echo "$f: lines are missing"
    grep -o '"\(name\|key\)":{"hex"' out
done
calm json-diff dflash-inspect --diff --json tensor.gguf "$T"
grep -c '"name":{"hex"' out
# a checkpoint's names may hold anything that JSON can say
printf '\106\0\0\0\0\0\0\0{"a\\u001b[2J\\u009bb":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\0\0\0\0' >x.safetensors
calm safetensors dflash-inspect --tensors x.safetensors
grep -a '^a' out | cut -c1-20
calm safetensors-json dflash-inspect --tensors --json x.safetensors
printf '{"schema":1,"kind":"compare","op":"\\u001b","a":"x\\u001b[2J","b":"\\u009b|","first_difference":1,"model":{"file":"\\u001b"}}\n' >cell.jsonl
sed 's/"kind":"compare"/"kind":"op"/' cell.jsonl >>cell.jsonl
printf 'a\1\2\3' >$'c\xff'; printf "b\1\2\3" >four
calm compare dflash-bench compare --json $'c\xff' four
grep -o '"a":{"hex":\["63","ff"\]}' out
calm report dflash-bench report cell.jsonl
echo done
