#!/bin/sh
# ask.sh - a client of dflash-generate --listen in the shell: a text, and what follows it as it comes.
#
# usage: ask.sh -m MODEL.gguf [-n N] [--chat] SOCKET [TEXT]      without TEXT: standard input
# The socket is reached through nc -U (netcat-openbsd), or socat, or python3; 77 where none is there. What is
# not a number or a path in the request comes from dflash-tokenize, and what comes back is ids: so no JSON has
# to be read but "tokens".
set -u
m='' n=256 chat='' text='' has_text=''
while [ $# -gt 0 ]; do
    case $1 in
    -m) m=$2 && shift ;;
    -n) n=$2 && shift ;;
    --chat) chat='--chat --chat-text' ;;
    *) break ;;
    esac
    shift
done
[ -n "$m" ] && [ $# -ge 1 ] && [ $# -le 2 ] || {
    echo "usage: ask.sh -m MODEL.gguf [-n N] [--chat] SOCKET [TEXT]" >&2
    exit 2
}
socket=$1
octal() { byte="\\$(($1 / 64))$(($1 / 8 % 8))$(($1 % 8))"; }
[ $# -lt 2 ] || text=$2 has_text=1
dial() { # the line on stdin goes there; what comes back, until it is done, to stdout
    if nc -h 2>&1 | grep -q -- -U; then
        nc -U "$socket"
    elif command -v socat >/dev/null; then
        socat -t 86400 - "UNIX-CONNECT:$socket"
    elif command -v python3 >/dev/null; then
        python3 -c 'import shutil, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(sys.stdin.buffer.read())
s.shutdown(socket.SHUT_WR)
while piece := s.recv(4096):
    sys.stdout.buffer.write(piece)
    sys.stdout.flush()' "$socket"
    else
        echo "no nc -U, socat or python3" >&2
        exit 77
    fi
}
command -v nc >/dev/null || command -v socat >/dev/null || command -v python3 >/dev/null || {
    echo "no nc, socat or python3" >&2
    exit 77
}
ids=$(if [ -n "$has_text" ]; then printf %s "$text"; else cat; fi | dflash-tokenize -q -m "$m" $chat | od -An -v -td4 | tr -s ' \n' ',' | sed 's/^,//; s/,$//')
[ -n "$ids" ] || exit 3
printf '{"prompt":[%s],"n":%s}\n' "$ids" "$n" | dial | while IFS= read -r line; do
    case $line in
    *'"error":'*) echo "$line" >&2 ;;
    *'"done":true'*) exit 0 ;;
    *'"tokens":['*)
        line=${line#*'"tokens":['}
        IFS=,
        for id in ${line%%]*}; do # little-endian int32
            octal $((id & 255)) && bytes=$byte
            octal $((id >> 8 & 255)) && bytes=$bytes$byte
            octal $((id >> 16 & 255)) && bytes=$bytes$byte
            octal $((id >> 24)) && printf "$bytes$byte"
        done
        unset IFS
        ;;
    esac
done | dflash-tokenize -q -m "$m" --decode
