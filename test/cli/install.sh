# `make install` puts programs, pages, completions, docs and licence in place, and `make uninstall` takes exactly them away.
mkdir b && ln -s "$(dirname "$(command -v dflash-bench)")" b/bin
root="$PWD/a b" share="a b/c d/share"
m() { make -s -C "$SRC" -o all BUILD="$PWD/b" "$@" DESTDIR="$root" PREFIX="/c d" >out 2>err || { echo "make $1 failed" && tail -n 3 err; }; }
mkdir -p "$share/doc/dflash.c" "$share/man/man1" "a b/c d/bin" # what others have stays
echo other >"$share/doc/dflash.c/other"
echo other >"$share/man/man1/other.1"
find "a b" -type f | sort >before
m install
[ "$(ls "a b/c d/bin" | tr '\n' ' ')" = "dflash dflash-bench dflash-convert dflash-generate dflash-inspect dflash-prefill dflash-quantize dflash-tokenize " ] || ls "a b/c d/bin"
for p in "a b/c d/bin"/*; do
    n=$(basename "$p")
    [ -x "$p" ] && "$p" --version | grep -q "^$n" || echo "$n does not run"
    for f in man/man1/$n.1 bash-completion/completions/$n fish/vendor_completions.d/$n.fish; do [ -s "$share/$f" ] || echo "no $f"; done
done
cmp "$SRC/LICENSE" "$share/doc/dflash.c/LICENSE"
for f in "$SRC"/docs/*.md "$SRC"/docs/*/*.md; do
    case $f in *-log.md) continue ;; esac
    cmp "$f" "$share/doc/dflash.c/${f#"$SRC"/}"
done
[ -x "$share/doc/dflash.c/data/clients/http.py" ] && [ -s "$share/zsh/site-functions/_dflash" ] || echo "no client, or no zsh"
# what a page names is there: files of the source tree are said to be that
grep -rohE '\]\([a-z./-]+\.md' "$share/doc/dflash.c/docs" | sort -u | wc -l >links
[ "$(cat links)" -gt 20 ] || echo "no links were found"
find "$share/doc/dflash.c/docs" -name '*.md' | while read -r page; do
    grep -oE '\]\([a-z0-9./-]+\.md' "$page" | sed 's/^](//' | sort -u | while read -r to; do
        case $to in *-log.md) continue ;; esac # of the development
        [ -e "$(dirname "$page")/$to" ] || echo "$page: $to is not installed"
    done
done
m install # once more: over what is there
m uninstall
find "a b" -type f | sort | diff before - && echo "as before"
[ ! -d "$share/doc/dflash.c/docs" ] || echo "an empty folder stays"
m uninstall # nothing is there: no error
rm "$share/doc/dflash.c/other" && m install && m uninstall
[ ! -d "$share/doc/dflash.c" ] || echo "our own folder stays"
