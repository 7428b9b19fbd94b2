#!/bin/sh
# deps.sh - install what dflash.c needs from Debian's own packages (Debian 12 or newer; root or sudo).
set -e
packages="gcc make libc6-dev libgomp1 zlib1g-dev libjansson-dev libpcre2-dev libutf8proc-dev libcmocka-dev xz-utils"
command -v apt-get >/dev/null || {
    echo "deps.sh: no apt-get here (expected Debian or a relative); what is needed goes by these names there: $packages" >&2
    exit 4
}
missing=
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
    echo "deps.sh: everything is installed"
    exit 0
fi
run=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "deps.sh: run me as root, or install sudo" >&2; exit 4; }
    run=sudo
fi
echo "deps.sh: installing$missing"
export DEBIAN_FRONTEND=noninteractive
$run apt-get update -qq
$run apt-get install -y -qq --no-install-recommends $missing
