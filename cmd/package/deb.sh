#!/bin/sh
# deb.sh - a Debian package of what `make install PREFIX=/usr` puts in place. Needs dpkg-deb; no network, no root.
#
# usage: cmd/package/deb.sh BUILD_DIR VERSION MAKE...     (from the repository's root; MAKE: how to call make)
# Writes BUILD_DIR/dflash.c_VERSION_ARCH.deb. It depends on the packages that the programs' libraries come from on this machine,
# from their versions here on: older ones were not tried.
set -eu
build=$1 version=$2
shift 2
command -v dpkg-deb >/dev/null || {
    echo "deb.sh: no dpkg-deb here (expected Debian or a relative)" >&2
    exit 4
}
arch=$(dpkg --print-architecture)
root=$build/deb
rm -rf "$root"
"$@" -s -o all -o completions install DESTDIR="$(cd "$build" && pwd)/deb" PREFIX=/usr >/dev/null
gzip -9n "$root"/usr/share/man/man1/*.1
for f in "$root"/usr/bin/*; do
    head -c 4 "$f" | grep -q ELF && strip --strip-unneeded "$f"
done
mv "$root/usr/share/doc/dflash.c/LICENSE" "$root/usr/share/doc/dflash.c/copyright"

# The package of a library; its file may be known below / or below /usr.
package_of() { # PATH
    dpkg -S "$1" 2>/dev/null || dpkg -S "/usr$1" 2>/dev/null || dpkg -S "${1#/usr}" 2>/dev/null ||
        dpkg -S "$(realpath "$1")" 2>/dev/null || {
        echo "deb.sh: $1: no package has this library" >&2
        return 1
    }
}
needs=$(for f in "$root"/usr/bin/*; do
    head -c 4 "$f" | grep -q ELF && ldd "$f" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p'
done | sort -u)
depends=
for p in $(for l in $needs; do package_of "$l" | sed 's/: .*//; s/:.*//; q'; done | sort -u); do
    v=$(dpkg-query -W -f='${Version}\n' "$p" | head -n 1)
    depends="$depends${depends:+, }$p (>= ${v%-*})" # of the upstream's version
done

mkdir -p "$root/DEBIAN"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
cat >"$root/DEBIAN/control" <<END
Package: dflash.c
Version: $version
Architecture: $arch
Maintainer: dflash.c <dflash.c@localhost>
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: $depends
Recommends: less, man-db
Suggests: gnuplot, python3
Section: science
Priority: optional
Description: DFlash speculative decoding for GGUF models
 Programs to convert, quantize, inspect, tokenize, prefill, generate and
 benchmark, joined by pipes. With a drafter the same bytes are written as
 without one.
END
find "$root" -type d -exec chmod 755 {} +
dpkg-deb --root-owner-group --build "$root" "$build/dflash.c_${version}_$arch.deb.tmp" >/dev/null
mv "$build/dflash.c_${version}_$arch.deb.tmp" "$build/dflash.c_${version}_$arch.deb"
rm -rf "$root"
echo "$build/dflash.c_${version}_$arch.deb"
