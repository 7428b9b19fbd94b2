# Text is shown before the input ends; ids likewise; -o FILE appears whole; cuts of the pipe change nothing.
m=$DATA/target-bf16.gguf
printf 'Gr\303\274\303\237e, \346\227\245\346\234\254\n' | dflash-tokenize -m "$m" >t

coproc D { exec dflash-tokenize -m "$m" --decode; }
cat t >&"${D[1]}"
IFS= read -r -t 20 line <&"${D[0]}" # the input is still open
echo "decoded: $line"
exec {D[1]}>&-
wait "$D_PID" 2>/dev/null || true

coproc E { exec dflash-tokenize -m "$m"; }
exec {out}<&"${E[0]}" # its own copy: the shell closes E's when the program ends
printf 'some words, ' >&"${E[1]}"
head -c 4 <&"$out" >first # the first id is final long before the end
printf 'more\n' >&"${E[1]}"
exec {E[1]}>&-
cat <&"$out" >rest
printf 'some words, more\n' | dflash-tokenize -m "$m" >whole
cat first rest | cmp - whole && echo "encoded as one"

while IFS= read -r -n 1 -d '' c; do printf %s "$c"; done <"$SRC/test/cli/tokenize_stream.sh" | dflash-tokenize -m "$m" >a
dflash-tokenize -m "$m" -o b <"$SRC/test/cli/tokenize_stream.sh"
cmp a b && echo "same ids from small pieces"
dflash-tokenize -m "$m" --decode <b | cmp - "$SRC/test/cli/tokenize_stream.sh" && echo "and back"

printf 'a<|endoftext|>b' >x
dflash-tokenize -m "$m" --special <x >s
dflash-tokenize -m "$m" <x >p
[ "$(stat -c %s s)" -lt "$(stat -c %s p)" ] && echo "a control token only with --special"
echo "$(dflash-tokenize -m "$m" --decode <s) $(dflash-tokenize -m "$m" --decode --special <s) $(dflash-tokenize -m "$m" --decode <p)"
