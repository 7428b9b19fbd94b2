# A model in ten files: every program reads it as the one that it was, states go from the one to the other; a part that is
# missing, cut, another's or at another's place is named; what is joined has the bytes of the file before.
T=$DATA/target-q8_0.gguf D=$DATA/drafter-q8_0.gguf
S=839K
head -c 600 "$SRC/data/prompts/python-1-short.txt" >text
dflash-quantize -q "$T" --type copy --split-size $S -o t.gguf
ls t-*.gguf
for f in t-*.gguf; do # but for a tensor that is larger by itself
    [ $f = t-00001-of-00010.gguf ] || [ "$(stat -c %s $f)" -le 839000 ] || echo "$f is larger than $S"
done
M=t-00001-of-00010.gguf
dflash-quantize -q $M --type COPY -o joined.gguf
cmp joined.gguf "$T" && echo joined
dflash-convert -q "$SRC/data/pair/target" --type q8_0 --split-size $S -o c.gguf # the same model, from its checkpoint
for i in 01 02 05 10; do cmp t-000$i-of-00010.gguf c-000$i-of-00010.gguf; done
dflash-convert -q "$D" --split-size 1M -o d.gguf
DM=$(echo d-00001-of-*)

dflash-inspect $M | head -n 1
dflash-inspect --check $M | sed -n 's/GGUF v3 \(in 10 files\).*/\1/p; $p'
dflash-inspect --diff $M "$T" | tail -n 1
dflash-inspect --pair $M "$DM" | tail -n 1
[ "$(dflash-inspect $M | grep ^identity)" = "$(dflash-inspect "$T" | grep ^identity)" ] && echo "one identity"
[ "$(dflash-inspect --tensors --json $M | grep -c '"kind":"tensor"')" = 90 ] || echo "not 90 tensors"
dflash-tokenize -m "$T" <text >p
dflash-tokenize -m $M <text | cmp - p
dflash-prefill -q -m "$T" -d "$D" -o one <p
dflash-prefill -q -m $M -d "$DM" -o ten <p
cmp one ten && echo "one state"
dflash-generate -q -m "$T" -n 20 --ignore-eos <p >g
dflash-generate -q -m $M -d "$DM" -n 20 --ignore-eos --state one </dev/null | cmp - g
dflash-quantize -q $M --type q4_0 -o q4.gguf 2>err
dflash-quantize -q "$T" --type q4_0 -o q4b.gguf 2>err
cmp q4.gguf q4b.gguf && echo "one q4_0"

says() { # WHAT COMMAND: its status and its last line
    local s=0
    (eval "$2") >said 2>err <p || s=$?
    cat said >>err
    echo "$1: $s: $(sed -n "s|$PWD/||; /^hint/!s/^[a-zA-Z-]*[: ] *//p" err | sed 's|(expected [0-9]\{8,\}, got [0-9]*)|(expected one, got another)|' | head -n 1)"
}
X=t-00004-of-00010.gguf
mv $X away
says missing "dflash-generate -m $M -n 1"
grep -q '^hint: a download' err || cat err
says "missing, checked" "dflash-inspect --check $M"
head -c 500000 away >$X
says cut "dflash-prefill -m $M"
cp t-00006-of-00010.gguf $X
says "another part" "dflash-inspect $M"
cp c-00004-of-00010.gguf $X
dflash-quantize -q "$T" --type copy --override-kv general.name=str:other --split-size $S -o other.gguf
cp other-00004-of-00010.gguf $X
says "another model" "dflash-generate -m $M -n 1"
says "a later part" "dflash-quantize t-00003-of-00010.gguf --type copy -o no"
grep -q '^hint: give t-00001-of-00010.gguf' err || cat err
# the fourth part's tensors a second time, as the fifth
cp away $X
cp away twice
at=$(grep -abo split.no twice | head -n 1)
printf '\4' | dd of=twice bs=1 seek=$((${at%%:*} + 12)) conv=notrunc status=none
mv t-00005-of-00010.gguf fifth
mv twice t-00005-of-00010.gguf
says twice "dflash-generate -m $M -n 1"
mv fifth t-00005-of-00010.gguf
# parts are inputs: nothing takes their place
sum=$(cat t-*.gguf | cksum)
says "over a part" "dflash-quantize $M --type copy -o t-00007-of-00010.gguf --force"
says "states over a part" "dflash-prefill -q -m $M -o t-00007-of-00010.gguf --force"
says "parts over themselves" "dflash-quantize $M --type copy -o t.gguf --split-size $S --force"
[ "$sum" = "$(cat t-*.gguf | cksum)" ] || echo "a part was changed"
says "to stdout" "dflash-quantize $M --type copy --split-size $S | cat >no; exit \${PIPESTATUS[0]}"
says "no size" "dflash-quantize $M --type copy --split-size 2T -o no.gguf"
says "copied, and another type" "dflash-quantize $M --type copy --tensor-type a=q8_0 -o no.gguf"
dflash-quantize -q $M --type copy --split-size 1 -o each.gguf
ls each-* | wc -l
