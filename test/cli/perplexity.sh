# Perplexity over windows is what the runs over their parts say; a reference's log-probabilities are written and compared with.
T=$DATA/target-bf16.gguf Q=$DATA/target-q4_0.gguf
P="dflash-prefill -q"
cat "$SRC/data/prompts/python-8-long.txt" | dflash-tokenize -m "$T" | head -c 1000 >p # 250 tokens
part() { tail -c +$((4 * $1 + 1)) p | head -c $((4 * $2)); } # FIRST COUNT
value() { sed -n "s/^$1 //p" "$2"; }
# a window of 40: the rows 20 to 38 are those of 40 tokens without those of the first 21
sum=0 n=0
for w in 0 1 2 3 4 5; do
    part $((40 * w)) 40 | $P -m "$T" --nll >whole
    part $((40 * w)) 21 | $P -m "$T" --nll >half
    part $((40 * w)) 40 | $P -m "$T" --nll --ctx 40 >one
    sum=$(awk -v a="$(value nll whole)" -v b="$(value nll half)" -v s="$sum" 'BEGIN {printf "%.9f", s + 39 * a - 20 * b}')
    [ "$(value tokens one)" = 19 ] || echo "not 19 rows of a window"
done
dflash-prefill --threads 2 -m "$T" --nll --ctx 40 --kl-save base <p >all 2>err
grep -o '[0-9]* tokens behind.*' err
grep -o '6 windows of 40 tokens' err
value tokens all
value windows all
awk -v a="$(value nll all)" -v b="$sum" 'BEGIN {d = a - b / 114; print d * d < 1e-10 ? "the sum of its parts" : d}'
awk -v a="$(value ppl all)" -v n="$(value nll all)" -v e="$(value nll_error all)" -v f="$(value ppl_error all)" '
    BEGIN {print (a - exp(n)) ^ 2 < 1e-6 && (f - e * a) ^ 2 < 1e-6 ? "exponentials" : "ppl " a " " f}'
stat -c %s base # 20 + 4 x 240 + 114 x (8 + 2 x 4096)
for how in "--threads 1" "--threads 3" "--isa scalar" "--chunk 7"; do
    $P -m "$T" --nll --ctx 40 --kl-save other $how <p | cmp - all
    cmp other base
done

$P -m "$T" --nll --kl-base base >itself
for x in tokens nll ppl windows same_top; do echo "$x $(value $x itself)"; done | cmp - <(
    grep -e ^tokens -e '^nll ' -e '^ppl ' all
    echo windows 6
    echo same_top 1.000000
) && echo "beside itself"
awk -v k="$(value kl itself)" 'BEGIN {print k * k < 1e-9 ? "no divergence" : k}'
$P -m "$Q" --nll --kl-base base >q
$P -m "$Q" --nll --ctx 40 <p | cmp - <(grep -v -e base -e kl -e ratio -e rms -e top q) && echo "the same perplexity"
awk -v a="$(value ppl q)" -v b="$(value base_ppl q)" -v r="$(value ln_ratio q)" -v k="$(value kl q)" -v m="$(value kl_median q)" -v t="$(value same_top q)" '
    BEGIN {print (log(a / b) - r) ^ 2 < 1e-8 && k > 0.01 && k < 1 && m > 0 && m < k && t > 0.5 && t < 1 ? "sound" : "unsound"}'
$P -m "$Q" --nll --kl-base base --json | grep -o '"kind":"perplexity"\|"windows":6,"ctx":40\|"kl":0\.[0-9]' | sed "s/0\.[0-9]\$/0.N/"
$P -m "$Q" --nll --json <p | grep -o '"windows":null,"ctx":null'
# BOS in place of each window's first token, where the model asks for it
B="--override-kv tokenizer.ggml.add_bos_token=bool:true --override-kv tokenizer.ggml.bos_token_id=int:5"
for w in 0 1 2 3 4 5; do
    printf '\5\0\0\0'
    part $((40 * w + 1)) 39
done >bos
$P -m "$T" --nll --ctx 40 <bos >b1
$P -m "$T" --nll --ctx 40 $B <p | cmp - b1
cmp -s b1 all && echo "the first tokens changed nothing"

no() { # WHAT COMMAND
    local s=0
    (eval "$2") >said 2>err <p || s=$?
    echo "$1: $s: $(sed "s|$DATA/||; s/^dflash-prefill: //; q" err)"
}
head -c 900000 base >cut
no cut "$P -m $T --nll --kl-base cut"
grep '^hint' err
no "no base" "$P -m $T --nll --kl-base p"
no "another ctx" "$P -m $T --nll --ctx 39 --kl-base base"
dflash-convert -q "$SRC/test/family/qwen3moe.json" --random 1 -o moe.gguf
no "another vocabulary" "$P -m moe.gguf --nll --kl-base base"
no short "$P -m $T --nll --ctx 251"
no tiny "$P -m $T --nll --ctx 2"
no "no windows" "$P -m $T --nll --kl-save x"
no both "$P -m $T --nll --kl-base base --kl-save x"
no "over itself" "$P -m $T --nll --ctx 40 --kl-save p"
no "base, no nll" "$P -m $T --kl-base base -o x"
no "json, no nll" "$P -m $T --json -o x"
no "with logits" "$P -m $T --nll --ctx 40 --logits x"
no "with a state" "$P -m $T --nll --ctx 40 --state x"
no "with a drafter" "$P -m $T -d $T --nll --ctx 40"
ls x 2>/dev/null || true
