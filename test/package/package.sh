#!/bin/bash
# package.sh - what is handed on works: the tarball of `make dist`, unpacked, builds programs and a test; the Debian package of
# `make deb` installs, runs and is removed without a trace.
#
# usage: test/package/package.sh BUILD_DIR [--system]      (from the repository's root)
# The package goes into a folder that dpkg takes for the root of a system with this machine's packages, so that its dependencies are
# asked for and nothing here changes; --system: onto this machine. That part needs root, and is skipped elsewhere.
set -u
build=$(cd "$1" && pwd)
system=${2-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD # the tarball has a folder of its own to build in
verdict() { # STATUS NAME
    [ "$1" = 0 ] && echo "ok   package/$2" || { echo "FAIL package/$2" && tail -n 20 "$work/log" | sed 's/^/    /' && failed=1; }
}
skip() { # WHY NAME...: loudly; skipped checks count as made
    why=$1
    shift
    for n; do echo "skip package/$n: $why" && echo "ok   package/$n (skipped)"; done
}
cuda=$(ls "$build"/.cuda-* 2>/dev/null | sed 's/.*-//')

# ---- the tarball ----
if [ -e .git ]; then
    make -s dist BUILD="$build" >"$work/log" 2>&1 && tar -xzf "$build"/dflash.c-*.tar.gz -C "$work" && cd "$work"/dflash.c-*/ &&
        git -C "$OLDPWD" ls-tree -r --name-only HEAD | sort >"$work/want" && find . -type f -printf '%P\n' | grep -vx .commit | sort >"$work/got" &&
        diff "$work/want" "$work/got" >>"$work/log"
    verdict $? "dist holds every file of the commit"
    # unoptimised: it is to compile and to run, not to be fast
    make -j"$(nproc)" CUDA=0 WERROR=1 CFLAGS_OPT=-O0 build/bin/dflash-convert build/bin/dflash-inspect build/test/test_text >"$work/log" 2>&1
    verdict $? "dist builds"
    build/test/test_text >"$work/log" 2>&1 && build/bin/dflash-convert -q data/pair/target -o t.gguf --type q8_0 2>>"$work/log" &&
        build/bin/dflash-inspect --check t.gguf >>"$work/log" 2>&1
    verdict $? "dist works"
    [ "$(build/bin/dflash-inspect --version)" = "dflash-inspect ${PWD##*/dflash.c-} ($(cat .commit))" ]
    verdict $? "dist knows its commit"
    cd "$OLDPWD" || exit 4
else
    skip "this is no clone" "dist holds every file of the commit" "dist builds" "dist works" "dist knows its commit"
fi

# ---- the package ----
names=("deb builds" "deb installs" "deb runs" "deb is removed")
if ! command -v dpkg-deb >/dev/null; then
    skip "no dpkg-deb here" "${names[@]}"
    exit $failed
fi
rm -f "$build"/dflash.c_*.deb
make -s deb CUDA="${cuda:-0}" BUILD="$build" >"$work/log" 2>&1 && deb=$(echo "$build"/dflash.c_*.deb) && [ -f "$deb" ] &&
    dpkg-deb -I "$deb" | grep -q '^ Depends: .*libc6 (>= .*libjansson4 (>= .*zlib1g (>= '
verdict $? "${names[0]}"
if [ "$(id -u)" != 0 ]; then
    skip "needs root" "${names[@]:1}"
elif [ -n "$system" ] && dpkg -s dflash.c >/dev/null 2>&1; then
    skip "dflash.c is installed on this machine" "${names[@]:1}"
else
    root='' how=()
    if [ -z "$system" ]; then
        root=$work/root how=(--root="$work/root" --log=/dev/null)
        mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/triggers"
        cp /var/lib/dpkg/status "$root/var/lib/dpkg/status"
    fi
    find "$root/usr/share" "$root/usr/bin" 2>/dev/null | sort >"$work/before"
    dpkg "${how[@]}" -i "$deb" >"$work/log" 2>&1 && dpkg "${how[@]}" -s dflash.c | grep -q '^Status: install ok installed'
    verdict $? "${names[1]}"
    for t in dflash dflash-convert dflash-quantize dflash-inspect dflash-tokenize dflash-prefill dflash-generate dflash-bench; do
        "$root/usr/bin/$t" --version | grep -q "^$t [0-9]" && [ -s "$root/usr/share/man/man1/$t.1.gz" ] && gzip -t "$root/usr/share/man/man1/$t.1.gz" || echo "$t"
    done >"$work/log" 2>&1
    PATH=$root/usr/bin:$PATH && dflash-convert -q data/pair/target -o "$work/t.gguf" --type q4_k_m &&
        dflash run -q -m "$work/t.gguf" -n 4 --device cpu 'def ' >>"$work/out" && [ -s "$work/out" ] && [ ! -s "$work/log" ] &&
        [ -s "$root/usr/share/doc/dflash.c/copyright" ] && [ -s "$root/usr/share/bash-completion/completions/dflash" ]
    verdict $? "${names[2]}"
    dpkg "${how[@]}" -r dflash.c >"$work/log" 2>&1
    status=$?
    find "$root/usr/share" "$root/usr/bin" 2>/dev/null | sort >"$work/after"
    # dpkg leaves folders of a root that is otherwise empty
    [ $status = 0 ] && ! grep -q dflash "$work/after" && { [ -z "$system" ] || diff "$work/before" "$work/after" >>"$work/log"; }
    verdict $? "${names[3]}"
fi
exit $failed
