# Completions are of the flag table: bash, and where they are installed zsh and fish, offer every flag that --help prints, the words
# that a flag takes, and files.
bin=$(dirname "$(command -v dflash-bench)")
"$SRC/cmd/package/completions.sh" "$bin" c
flags_of() { "$@" --help | sed 's/^  -h, --help/  -h\n  --help/' | sed -nE 's/^  (-[-a-z0-9]+).*/\1/p' | sort -u; }
verbs_of() { [ "$1" != bench ] || echo run rows calibrate ops matrix work compare report; }
for f in c/bash/*; do . "$f"; done
try() { # WORD...: what bash offers for the last one, sorted
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    "_${1//-/_}" "$1" "${@: -1}" "${@: -2:1}"
    printf '%s\n' "${COMPREPLY[@]}" | sort
}
for t in convert quantize inspect tokenize prefill generate; do
    flags_of dflash-$t >want
    [ "$(wc -l <want)" -gt 8 ] || echo "$t: few flags"
    try dflash-$t - | diff want - >d || { echo "$t:" && cat d; }
    complete -p dflash-$t >/dev/null || echo "$t: nothing is said to complete it"
done
for v in $(verbs_of bench); do
    flags_of dflash-bench "$v" >want
    try dflash-bench "$v" - | diff want - >d || { echo "bench $v:" && cat d; }
done
{ flags_of dflash run && flags_of dflash-generate; } | sort -u >want
try dflash run - | diff want - || echo "dflash run"
mkdir files && cd files && touch 'a model.gguf' b.gguf && . ../c/bash/dflash-quantize
p() { try "$@" | tr '\n' ' ' && echo; }
p dflash-bench ''
p dflash c
p dflash-generate --kv q
p dflash-generate --lookup ''
p dflash-generate --lookup = o # as bash has --lookup=o
p dflash-generate --lookup =
p dflash-quantize --type Q4_K_
p dflash-generate -n ''
p dflash-generate -m a
p dflash-inspect ''
p dflash-convert --draft-no-such
cd ..

# zsh: a shell on a terminal of its own completes, and the screen is read
if command -v zsh >/dev/null; then
    cat >z <<'END'
zmodload zsh/zpty
zpty z 'TERM=dumb COLUMNS=400 PS1= RPROMPT= zsh -f -i'
zpty -w z 'unsetopt zle_bracketed_paste prompt_sp; fpath=($PWD/c/zsh $fpath); autoload -Uz compinit; compinit -u -D; PS1="@"; stty -echo; echo re""ady'
zpty -r z line '*ready*'
zpty -w -n z $1$'\t'
zpty -w -n z $'\x01echo "<\x05>"\n' # the line as it was completed, quoted and printed
zpty -r z line '*<*>*'
print -r -- ${${line##*<}%%>*}
END
    for line in 'dflash-quantize --imat' 'dflash-bench calib' 'dflash-generate --lookup of' 'dflash-bench compare --js'; do
        timeout 20 zsh -f z "$line" >zout 2>&1 || echo "zsh fails: $line"
        tail -n 1 zout | tr -d '\r' | sed 's/ *$//'
    done >zgot
    printf '%s\n' 'dflash-quantize --imatrix' 'dflash-bench calibrate' 'dflash-generate --lookup off' 'dflash-bench compare --json' | diff - zgot || echo zsh
else
    echo "skipped: zsh is not installed: its completions were not tried" >&2
fi
if command -v fish >/dev/null; then
    for t in convert quantize inspect tokenize prefill generate; do
        HOME=$PWD fish -N -c "source c/fish/dflash-$t.fish; complete -C 'dflash-$t -'" 2>err | cut -f1 | sort -u >got
        flags_of dflash-$t | diff - got >d || { echo "fish: $t:" && cat d; }
    done
    HOME=$PWD fish -N -c "source c/fish/dflash-bench.fish; complete -C 'dflash-bench '; complete -C 'dflash-bench compare --js'; complete -C 'dflash-bench run --lookup o'" | cut -f1 | tr '\n' ' ' >got
    echo 'calibrate compare matrix ops report rows run work --json off on only ' | tr ' ' '\n' | sort >want
    tr ' ' '\n' <got | grep -vx -e '-.*' >g || true
    grep -qx -e --json got || tr ' ' '\n' <got | grep -qx -e --json || echo "fish: no --json"
    for w in calibrate compare matrix ops report rows run work off on only; do grep -qx "$w" g || echo "fish: no $w"; done
else
    echo "skipped: fish is not installed: its completions were not tried" >&2
fi
