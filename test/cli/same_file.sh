# An output that is an input too, by the same path, a symbolic link or a hard link: refused (2) with --force as well, and the
# input stays as it was.
. "$SRC/test/cli/outputs.inc"
inputs
cp "$T" t.gguf
cp "$D" d.gguf
dflash-prefill -q -m t.gguf -d d.gguf -o s <p
dflash-bench compare --json p p >cell
cp -r "$SRC/data/pair/drafter" hf
cp -r "$SRC/data/pair/target" hft
same() { # NAME FILE COMMAND: @ is the output
    local how sum
    sum=$(cksum <"$2")
    ln -s "$PWD/$2" sym
    ln "$2" hard
    for how in "$2" "./$2" sym hard; do try "$1 as $how" 2 "${3//@/$how}"; done
    [ "$sum" = "$(cksum <"$2")" ] || echo "$1: $2 was changed"
    [ -L sym ] || echo "$1: the link is gone"
    rm -f sym hard
}
same convert-gguf d.gguf "dflash-convert -q d.gguf --force -o @"
same convert-gguf-target t.gguf "dflash-convert -q d.gguf --target t.gguf --force -o @"
for f in config.json model.safetensors; do same "convert $f" hf/$f "dflash-convert -q hf --target hft --force -o @"; done
for f in config.json tokenizer.json tokenizer_config.json generation_config.json model.safetensors; do
    [ ! -e hft/$f ] || same "convert --target $f" hft/$f "dflash-convert -q hf --target hft --force -o @"
    [ ! -e hft/$f ] || same "convert target's $f" hft/$f "dflash-convert -q hft --force -o @"
done
same quantize d.gguf "dflash-quantize -q d.gguf --type q8_0 --force -o @"
same inspect t.gguf "dflash-inspect t.gguf --force -o @"
same inspect-pair d.gguf "dflash-inspect --pair t.gguf d.gguf --force -o @"
echo '{}' >hft/model.safetensors.index.json
for f in hft hft/ hft/model.safetensors.index.json; do
    same "inspect $f" hft/model.safetensors "dflash-inspect $f --force -o @"
    same "inspect-check $f" hft/model.safetensors "dflash-inspect --check $f --force -o @"
    same "inspect-diff $f" hft/model.safetensors "dflash-inspect --diff $f t.gguf --force -o @"
    same "inspect-diff with $f" hft/model.safetensors "dflash-inspect --diff t.gguf $f --force -o @"
    same "inspect $f config" hft/config.json "dflash-inspect $f --force -o @"
    same "inspect $f index" hft/model.safetensors.index.json "dflash-inspect $f --force -o @"
done
rm hft/model.safetensors.index.json
try "inspect into the checkpoint's folder" 0 "dflash-inspect hft -o hft/report && rm hft/report"
same tokenize t.gguf "dflash-tokenize -m t.gguf --force -o @ <text"
same tokenize-stdin text "dflash-tokenize -m t.gguf --force -o @ <text"
same decode-stdin p "dflash-tokenize -m t.gguf --decode --force -o @ <p"
for f in t.gguf d.gguf p; do
    same "prefill -o $f" $f "dflash-prefill -q -m t.gguf -d d.gguf --force -o @ <p"
    same "prefill --logits $f" $f "dflash-prefill -q -m t.gguf -d d.gguf --logits @ <p"
    same "generate -o $f" $f "dflash-generate -q -m t.gguf -d d.gguf -n 2 --force -o @ <p"
    for flag in stats draft-trace draft-logits; do
        same "generate --$flag $f" $f "dflash-generate -q -m t.gguf -d d.gguf -n 2 --width 8 --$flag @ <p"
    done
    same "bench run $f" $f "dflash-bench run -q -m t.gguf -d d.gguf -n 2 --runs 1 p --force -o @"
done
same generate-state s "dflash-generate -q -m t.gguf -d d.gguf --state s -n 2 --force -o @"
same generate-state-stats s "dflash-generate -q -m t.gguf -d d.gguf --state s -n 2 --stats @"
same bench-rows t.gguf "dflash-bench rows -q -m t.gguf --rows 1 --force -o @"
same bench-compare q "dflash-bench compare p q --force -o @"
same bench-compare-prompt text "dflash-bench compare p q -m t.gguf --prompt text --force -o @"
same bench-report cell "dflash-bench report cell --force -o @"
same bench-matrix text "dflash-bench matrix --target hft --drafter hf text --force -o @"
for f in hft/config.json hft/tokenizer.json hft/model.safetensors hf/model.safetensors; do
    same "bench-matrix $f" $f "dflash-bench matrix --target hft --drafter hf text --force -o @"
done
# Files that flags name beside the models.
dflash-tokenize -q -m t.gguf <"$SRC/data/prompts/python-8-long.txt" | head -c 1600 >long
cp t.gguf scorer
for flag in -o --kept; do same "prefill $flag scorer" scorer "dflash-prefill -q -m t.gguf --compress 0.6 --scorer scorer -o s2 --force $flag @ <long"; done
dflash-convert -q "$SRC/test/family/qwen3moe.json" --random 3 --type f32 -o moe.gguf
printf '\1\0\0\0\2\0\0\0\3\0\0\0' >few
dflash-prefill -q -m moe.gguf --imatrix im <few
host="--experts-host 1 --experts-counts im"
same prefill-counts im "dflash-prefill -q -m moe.gguf $host -o @ --force <few"
same nll-counts im "dflash-prefill -q -m moe.gguf $host --nll --ctx 3 --kl-save @ <few"
same generate-counts im "dflash-generate -q -m moe.gguf $host -n 2 --stats @ <few"
same bench-counts im "dflash-bench run -q -m moe.gguf $host -n 2 --runs 1 few --force -o @"
try "more is added to an importance matrix that places experts" 0 "dflash-prefill -q -m moe.gguf $host --imatrix im <few 2>/dev/null"
dflash-bench rows -q -m t.gguf -d d.gguf --rows 2 --prompts 4 --context 4 --rounds 1 --plan-times times >/dev/null
dflash-bench calibrate -q -m t.gguf -d d.gguf -n 4 p >learnt
for f in "times --plan-times" "learnt --calibration" "q --lookup on --lookup-file"; do
    same "generate ${f#* }" ${f%% *} "dflash-generate -q -m t.gguf -d d.gguf -n 2 ${f#* } ${f%% *} --stats @ <p"
    same "bench ${f#* }" ${f%% *} "dflash-bench run -q -m t.gguf -d d.gguf -n 2 --runs 1 ${f#* } ${f%% *} p --force -o @"
done
# By redirection: stdout is the input.
for c in "dflash-quantize -q d.gguf --type q8_0 >>d.gguf" "dflash-convert -q d.gguf >>d.gguf" \
    "dflash-generate -q -m t.gguf -n 2 <p >>p" "dflash-prefill -q -m t.gguf <p >>t.gguf" "dflash-tokenize -m t.gguf <text >>text"; do
    try "$c" 2 "$c"
done
echo checked
