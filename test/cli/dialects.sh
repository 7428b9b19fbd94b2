# The pair's drafter as every engine's own writer spells it ($DATA/dialects): recognised, told, the same drafts as the file of
# upstream, the same after relabelling; and what its own readers would take another way.
printf '\5\0\0\0\6\0\0\0\7\0\0\0' >p
draft() { # DRAFTER TRACE FLAGS...: text and proposals
    d=$1 t=$2
    shift 2
    dflash-generate -q -m "$DATA/target-q8_0.gguf" -d "$d" -n 48 --width 8 --draft-trace "$t" "$@" <p >out
    cat out >>"$t"
}
draft "$DATA/drafter-q4_k_m.gguf" want --draft-causal 0
draft "$DATA/drafter-q4_k_m.gguf" other --draft-causal 0 --draft-tap-shift 0
cmp -s want other && echo "the other taps draft the same?" # then nothing below could fail
for f in "$DATA"/dialects/*.gguf; do
    name=$(basename "$f" .gguf)
    case $name in relative-*) continue ;; esac # relatives.sh
    dflash-inspect "$f" | sed -n "s|^dialect  *|$name: |p"
    case $name in small-*) continue ;; esac
    draft "$f" t --draft-causal 0 # rx has no windows: 256 positions are not reached
    cmp want t || echo "$name: drafts differ from upstream's"
    dflash-convert -q "$f" -o up.gguf --force --dialect upstream --causal 0
    dflash-inspect --diff "$f" up.gguf | tail -n 1
    draft up.gguf t
    cmp want t || echo "$name to upstream: drafts differ"
done
dflash-generate -v -m "$DATA/target-q8_0.gguf" -d "$DATA/dialects/unshifted.gguf" -n 1 <p 2>err >out
sed -n 's/^dflash-generate: drafter: taps: //p' err
# attention.causal, as ik_llama.cpp's converter writes it, does not count: the proposals are those of the drafter's own pattern
draft "$DATA/drafter-q4_k_m.gguf" want
dflash-generate -m "$DATA/target-q8_0.gguf" -d "$DATA/dialects/ik.gguf" -n 48 --width 8 --draft-trace t <p 2>err >out
cat out >>t
cmp want t || echo "ik: drafts differ without a flag"
sed -n 's/^dflash-generate: drafter: attention/attention/p' err
draft "$DATA/dialects/ik.gguf" t --draft-causal 0
cmp -s want t && echo "bidirectional layers draft the same?"
dflash-convert "$DATA/dialects/ik.gguf" -o up.gguf --force --dialect upstream 2>err
sed -n '/causal/s/^dflash-convert: //p' err
draft up.gguf t
cmp want t || echo "ik to upstream: drafts differ without a flag"
# all layers slide, so all are causal in the block: readers of upstream are told, and there and back is the same file
sed 's/"full_attention"/"sliding_attention"/' "$SRC/data/pair/drafter/config.json" >slides.json
dflash-convert -q slides.json --random 1 --type q8_0 -o slides.gguf
dflash-inspect --key dflash.attention.causal slides.gguf
for x in unshifted ik buun lucebox; do
    dflash-convert -q slides.gguf -o there.gguf --force --dialect $x
    dflash-convert -q there.gguf -o back.gguf --force --dialect upstream
    cmp slides.gguf back.gguf || echo "slides: upstream, $x and back"
done
