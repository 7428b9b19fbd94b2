#!/bin/bash
# serve.sh - dflash-generate --serve with real clients (client.c, and the shell).
#
# usage: test/serve/serve.sh BIN_DIR PAIR_DIR CLIENT [LINES [bits]]      LINES: random lines a run; default 400
# bits: what is written alone, not what happens when: for a device, which is done before a client can be killed.
set -u
bin=$(cd "$1" && pwd) pair=$(cd "$2" && pwd) client=$(cd "$(dirname "$3")" && pwd)/$(basename "$3") lines=${4:-400} only=${5:-}
src=$(cd "$(dirname "$0")/../.." && pwd)
export PATH="$bin:$PATH" LC_ALL=C
work=$(mktemp -d)
servers=()
trap 'for p in "${servers[@]}"; do kill -9 "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
cd "$work" || exit 4
failed=0
check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$work/out" 2>"$work/err"; then
        echo "ok   serve/$name"
    else
        failed=$((failed + 1))
        echo "FAIL serve/$name"
        tail -n 8 "$work/out" "$work/err" | sed 's/^/    /'
        for s in "${servers[@]}"; do kill -9 "$s"; done 2>/dev/null
        rm -f s
    fi
    servers=()
}

at_places() { # IDS PLACES: the ids that stand there
    ids "$2" | while read -r i; do dd if="$1" bs=4 skip="$i" count=1 status=none; done
}
ids() { od -An -v -td4 -w4 "$1" | tr -d ' '; }

# Prompts: b and c begin as a does and part from it, within a chunk and at a chunk's end; d is another.
set_up() { # DIR TARGET: prompts, and what dflash-generate alone writes for them
    local t=$2 d=$1
    mkdir "$d"
    dflash-tokenize -m "$t" <"$src/data/prompts/python-8-long.txt" >"$d/all"
    dflash-tokenize -m "$t" <"$src/data/prompts/manual-8-long.txt" >"$d/other"
    head -c 1200 "$d/all" >"$d/a.tok"
    { head -c 800 "$d/all"; head -c 500 "$d/other"; } >"$d/b.tok"
    { head -c 512 "$d/all"; head -c 300 "$d/other"; } >"$d/c.tok"
    head -c 360 "$d/other" >"$d/d.tok"
    dflash-prefill -q -m "$t" --chunk 64 --compress 0.8 --kept "$d/places" -o "$d/state" <"$d/a.tok" 2>/dev/null
    at_places "$d/a.tok" "$d/places" >"$d/a.kept"
    for p in a b c d; do
        dflash-generate -q -m "$t" -n 24 --chunk 64 --ignore-eos <"$d/$p.tok" >"$d/$p.0.out"
        dflash-generate -q -m "$t" -n 24 --chunk 64 --ignore-eos --temp 0.8 --top-p 0.95 --top-k 40 --repeat-penalty 1.1 --seed 7 <"$d/$p.tok" >"$d/$p.1.out"
        dflash-generate -q -m "$t" -n 24 --chunk 64 --ignore-eos --temp 1 --seed 9 --frequency-penalty 0.2 --presence-penalty 0.1 <"$d/$p.tok" >"$d/$p.2.out"
    done
}

dense=$pair/target-bf16.gguf dense_d=$pair/drafter-bf16.gguf hybrid=$pair-hybrid/target-bf16.gguf hybrid_d=$pair-hybrid/drafter-bf16.gguf
set_up dense "$dense"
set_up hybrid "$hybrid"
common="--serve --ignore-eos --ctx 512 --chunk 64"

# ---- random lines by pipes: cold and restored, greedy and sampled, with and without a drafter ----
check lines-dense "$client" lines 1 "$lines" "$work/dense" dflash-generate -q -m "$dense" -d "$dense_d" $common --stream-fd 9
check lines-dense-2 "$client" lines 2 "$lines" "$work/dense" dflash-generate -q -m "$dense" -d "$dense_d" $common --stream-fd 9 --streams 3 --width 4
check lines-plain "$client" lines 3 "$lines" "$work/dense" dflash-generate -q -m "$dense" $common --stream-fd 9 --streams 2
check lines-small "$client" lines 4 "$lines" "$work/dense" dflash-generate -q -m "$dense" -d "$dense_d" $common --stream-fd 9 --lookup on --slot-bytes 16000000
check lines-hybrid "$client" lines 5 "$lines" "$work/hybrid" dflash-generate -q -m "$hybrid" -d "$hybrid_d" $common --stream-fd 9 --streams 2
check lines-hybrid-2 "$client" lines 6 "$lines" "$work/hybrid" dflash-generate -q -m "$hybrid" -d "$hybrid_d" $common --stream-fd 9 --width 5 --slot-bytes 40000000

# ---- by pipes, one thing at a time ----
t=$dense d=$dense_d p=$work/dense
serve() { timeout 200 dflash-generate -q -m "$t" -d "$d" $common "$@"; } # lines on stdin, replies on stdout
list() { ids "$1" | paste -sd,; }

# what was written may be gone on with: the same as one run with a state between
snapshot() {
    dflash-generate -q -m "$t" -d "$d" -n 10 --ignore-eos --chunk 64 --save-state s1 <"$p/a.tok" >w1
    cat "$p/a.tok" w1 "$p/d.tok" >more.tok
    dflash-generate -q -m "$t" -d "$d" -n 6 --ignore-eos --state s1 --append <"$p/d.tok" >w2
    printf '%s\n' "$p/a.tok 10" "SNAPSHOT 7" "$p/d.tok 3" "RESTORE 7 ./more.tok 6" '{"op":"save","slot":7,"file":"s2"}' LIST_SLOTS |
        serve --stream-fd 3 3>st >re
    grep -qx '\[snap\] inline slot=7 cur_pos=310' re && grep -qx '\[snap\] slots=7' re &&
        grep -qx 'ok N=400 gen=6 prefix_len=310 .*(RESTORE slot=7) stream_fd=3' re || return 1
    { ids w1; echo -1; head -n 3 <(ids "$p/d.0.out"); echo -1; ids w2; echo -1; } | diff - <(ids st) || return 1
    [ ! -e s2 ] # JSON acts when it is read: there was no slot yet
    printf '%s\n' '{"op":"load","slot":7,"file":"s1"}' '{"op":"save","slot":7,"file":"s2"}' "RESTORE 7 ./more.tok 6" \
        '{"id":1,"restore":7,"append":true,"file":"'"$p"'/d.tok","n":6,"save_state":"s3"}' |
        serve --stream-fd 3 3>st >re
    cmp s1 s2 && { ids w2; echo -1; } | diff - <(ids st) && grep -q '"id":1.*"done":true.*"prompt_tokens":400,"cached_tokens":310' re || return 1
    dflash-generate -q -m "$t" -d "$d" -n 6 --ignore-eos --state s1 --append --save-state s4 <"$p/d.tok" >w2 && cmp s3 s4
}
check snapshot snapshot

# a slot's file is that of dflash-prefill, and is refused where it does not fit
files() {
    dflash-prefill -q -m "$t" -d "$d" --chunk 64 -o pre <"$p/a.tok" && dflash-prefill -q -m "$t" --chunk 64 -o bare <"$p/a.tok"
    head -c 100000 pre >cut
    printf '%s\n' "$p/a.tok 0 snap=300:1" | serve --stream-fd 3 3>st >re && grep -q 'inline slot=1 cur_pos=300' re || return 1
    printf '%s\n' '{"id":1,"file":"'"$p"'/a.tok","n":0,"save_state":"mine"}' '{"id":2,"state":"pre","file":"'"$p"'/a.tok","n":5}' \
        '{"op":"load","id":3,"slot":1,"file":"bare"}' '{"op":"load","id":4,"slot":1,"file":"cut"}' '{"op":"load","id":5,"slot":1,"file":"none"}' |
        serve >re
    cmp mine pre && grep -q '"id":2,"schema":1,"done":true.*"cached_tokens":300' re && grep -q '"id":3,"error":"invalid_snapshot_slot"' re &&
        grep -q '"id":4,"error":"invalid_snapshot_slot"' re && grep -q '"id":5,"error":"no_room"' re
}
check files files

# a prompt that begins like another goes on there; a kept beginning holds whole chunks, and leaves a token
beginnings() {
    head -c 256 "$p/a.tok" >chunk.tok # one chunk
    head -c 260 "$p/a.tok" >longer.tok
    printf '{"id":%d,"file":"%s","n":2}\n' 1 chunk.tok 2 chunk.tok 3 longer.tok 4 "$p/b.tok" 5 "$p/a.tok" 6 "$p/a.tok" 7 "$p/c.tok" |
        dflash-generate -q -m "$1" -d "$2" $common --serve >re
    sed -n 's/.*"id":\([0-9]\),.*"cached_tokens":\([0-9]*\).*/\1 \2/p' re | paste -sd, | grep -x "$3"
}
check beginnings-dense beginnings "$dense" "$dense_d" '1 0,2 0,3 64,4 64,5 192,6 256,7 128'
# with recurrent state: where a prompt ended, and where two parted (5 leaves b at 192, 7 leaves a at 128)
check beginnings-hybrid beginnings "$hybrid" "$hybrid_d" '1 0,2 0,3 64,4 64,5 64,6 256,7 64'

json() {
    printf '%s\n' '{"id":"x","prompt":['"$(list "$p/a.tok")"'],"n":24,"text":true}' '{"id":2,"file":"'"$p"'/a.tok","n":24,"stop":['"$(ids "$p/a.0.out" | sed -n 5p)"']}' \
        '{"id":3,"file":"'"$p"'/a.tok","seed":0,"temp":1,"n":9}' '{"id":4,"file":"'"$p"'/a.tok","seed":0,"temp":1,"n":9}' |
        serve >re
    dflash-tokenize -m "$t" --decode <"$p/a.0.out" >text
    dflash-generate -q -m "$t" -n 9 --chunk 64 --ignore-eos --temp 1 <"$p/a.tok" >seed0
    sed -n 's/.*"id":"x".*"text":"\(.*\)"}$/\1/p' re | tr -d '\n' >escaped
    printf '%b' "$(sed 's/\\"/"/g' escaped)" | cmp - text || return 1
    grep -q '"id":2,.*"done":true,"stop":"stop","stop_id":.*"generated_tokens":5,' re || return 1
    for i in 3 4; do sed -n "s/.*\"id\":$i,\"tokens\":\[\(.*\)\].*/\1/p" re | tr ',' '\n' | diff - <(ids seed0) || return 1; done
    # a stop text ends with the token that completes it
    words=$(head -c 30 text | tail -c 8)
    dflash-generate -q -m "$t" -n 24 --chunk 64 --ignore-eos --stop-text "$words" <"$p/a.tok" >cut.tok
    printf '{"id":1,"file":"%s","n":24,"stop_text":["zzzz","%s"]}\n' "$p/a.tok" "$(printf %s "$words" | sed 's/[\\"]/\\&/g' | sed ':a;N;$!ba;s/\n/\\n/g')" | serve >re
    grep -q '"stop":"text","stop_text":' re && sed -n 's/.*"tokens":\[\(.*\)\].*/\1/p' re | tr ',' '\n' | diff - <(ids cut.tok)
}
check json json

seeds() { # 0 is random in samp=; whatever the seed, the line is drafted as it is plain
    printf '%s\n' "$p/a.tok 24 samp=2,1,0,1,0" "$p/a.tok 24 samp=2,1,0,1,0" "$p/a.tok 24 samp=2,1,0,1,5" "$p/a.tok 24 samp=2,1,0,1,5" | serve --stream-fd 3 3>st >re
    split -b 100 st part. && ! cmp -s part.aa part.ab && cmp part.ac part.ad
}
check seeds seeds

# Behind a kept beginning the same is written as without one, where a prompt is run as prompts are (on a device a chunk of
# more than 64 tokens has a precision of its own), greedy and sampled.
cold() { # TARGET DRAFTER CHUNK
    n=0
    for f in all b c a all; do
        for how in '' ',"temp":0.9,"seed":4'; do
            for cache in '' ',"cache":false'; do
                n=$((n + 1))
                printf '{"id":%d,"file":"%s/%s","n":40%s%s}\n' $n "$p" "$([ $f = all ] && echo all || echo $f.tok)" "$how" "$cache"
            done
        done
    done | dflash-generate -q -m "$1" -d "$2" --serve --ignore-eos --ctx 2048 --chunk "$3" >re
    for ((i = 1; i <= 20; i++)); do sed -n "s/.*\"id\":$i,\"tokens\":\[\(.*\)\].*/\1/p" re | tr ',' '\n' >cold.$i; done
    for ((i = 1; i < 20; i += 2)); do [ "$(wc -l <cold.$i)" = 40 ] && cmp cold.$i cold.$((i + 1)) || return 1; done
    [ "$(grep -c '"done":true.*"cached_tokens":[1-9]' re)" -ge 7 ]
}
check cold-dense cold "$dense" "$dense_d" 100
p=$work/hybrid
check cold-hybrid cold "$hybrid" "$hybrid_d" 128
p=$work/dense
[ "$only" != bits ] || {
    echo "serve: $failed failed"
    exit "$failed"
}

check lines-tree "$client" lines 7 "$lines" "$work/dense" dflash-generate -q -m "$dense" -d "$dense_d" $common --stream-fd 9 --tree 12 --streams 2
limits() {
    printf '%s\n' "$p/a.tok 300" '{"id":1,"file":"'"$p"'/a.tok"}' '{"id":2,"prompt":[1,2,3],"n":600}' '{"id":3,"prompt":[1,2,3],"n":2,"timeout_s":0.000001}' | serve --stream-fd 3 3>st >re
    grep -q '^err context_overflow' re && grep -q '"id":1,.*"stop":"length".*"generated_tokens":205,' re && grep -q '"id":2,"error":"context_overflow"' re &&
        grep -q '"id":3,.*"done":true,"stop":"timeout"' re && [ "$(ids st)" = -1 ] || return 1
    # lines that are too long, and one that no newline ends
    long() { head -c 17000000 /dev/zero | tr '\0' "$1"; }
    { long a && echo && printf '{"id":' && long 1 && echo && long ' ' && echo 'x' && printf '%s' "$p/a.tok 1"; } | serve --stream-fd 3 3>st >re
    [ "$(grep -c 'too long (expected at most 16777216 bytes' re)" = 3 ] && grep -q '^{"error":"bad_args","message":"the line is too long' re &&
        [ "$(list st)" = "-1,-1,$(ids "$p/a.0.out" | head -n 1),-1" ] || return 1
    printf '%s\n' "$p/a.tok 9" "$p/a.tok 4" '{"id":1,"prompt":[1,2,3]}' | serve --stream-fd 3 -n 5 3>st >re
    grep -q '^err token_budget' re && grep -q '^ok N=300 gen=4' re && grep -q '"id":1,.*"generated_tokens":5,' re || return 1
    printf '%s\n' "$p/a.tok 150" '{"id":1,"file":"'"$p"'/a.tok","n":150}' | serve --stream-fd 3 --time-limit 0.001 3>st >re
    grep -qx 'err timeout' re && grep -q '"id":1,.*"stop":"timeout"' re && [ "$(ids st | tail -n 1)" = -1 ]
}
check limits limits

# the second request is short, and does not wait for the first
turns() {
    printf '%s\n' '{"id":1,"file":"'"$p"'/a.tok","n":200}' '{"id":2,"file":"'"$p"'/d.tok","n":3}' | serve --streams 2 >re
    sed -n 's/.*"id":\(.\).*"done".*/\1/p' re | paste -sd, | grep -x 2,1 || return 1
    printf '%s\n' '{"id":1,"file":"'"$p"'/a.tok","n":200}' '{"id":2,"file":"'"$p"'/d.tok","n":3}' | serve >re
    sed -n 's/.*"id":\(.\).*"done".*/\1/p' re | paste -sd, | grep -x 1,2
}
check turns turns

# a line of JSON cancels the bare line that runs
cancelled() {
    mkfifo in.c out.c
    serve --stream-fd 3 3>st <in.c >out.c &
    exec 7>in.c 8<out.c
    read -r _ <&8
    echo "$p/a.tok 200" >&7
    while [ "$(stat -c %s st)" -lt 8 ]; do read -rt 0.01 _ <&8; done
    printf '%s\n' '{"op":"cancel","line":true}' "$p/d.tok 2" >&7
    exec 7>&-
    cat <&8 >re
    exec 8<&-
    wait
    grep -qx '{"op":"cancel","found":1}' re && grep -qx 'err cancelled' re && [ "$(ids st | grep -cx -- -1)" = 2 ] &&
        [ "$(ids st | tail -n 3 | paste -sd,)" = "$(ids "$p/d.0.out" | head -n 2 | paste -sd,),-1" ]
}
check cancelled cancelled

# nobody reads the tokens any more: that line ends, not the process
closed_stream() {
    mkfifo fifo
    { head -c 40 fifo >some; } &
    { printf '%s\n' "$p/a.tok 200" "$p/a.tok 3"; sleep 1; printf '%s\n' "$p/a.tok 3" '{"id":1,"prompt":[5],"n":2}'; } | serve --stream-fd 3 3>fifo >re || return 1
    wait
    grep -qx 'err stream_closed' re && grep -qx 'err no_stream_fd' re && grep -q '"id":1.*"generated_tokens":2,' re
}
check closed-stream closed_stream
closed_stdout() {
    { printf '%s\n' "$p/a.tok 3"; sleep 0.3; printf '%s\n' "$p/a.tok 4"; } | serve --stream-fd 3 3>st | head -n 1 >re
    [ "${PIPESTATUS[1]}" = 0 ] && [ "$(ids st | grep -cx -- -1)" = 2 ] && [ "$(ids st | wc -l)" = 9 ]
}
check closed-stdout closed_stdout

# memory that is given back is not there: the file is no longer mapped; what comes back must be the same file
parked() {
    cp "$t" own.gguf
    mkfifo in.p out.p
    dflash-generate -q -m own.gguf -d "$d" $common --stream-fd 3 3>st <in.p >out.p &
    local pid=$!
    exec 7>in.p 8<out.p
    read -r _ <&8
    mapped() { grep -c "$1" /proc/$pid/maps; }
    [ "$(mapped own.gguf)" != 0 ] || return 1
    echo park >&7
    read -r x <&8 && [ "$x" = '[park] target released' ] && read -r x <&8 && [ "$x" = '[park] draft released' ] || return 1
    [ "$(mapped '\.gguf')" = 0 ] || return 1
    printf '%s\n' "$p/a.tok 3" '{"id":1,"prompt":[5],"n":2}' >&7
    read -r x <&8 && read -r y <&8 && case "$x$y" in *'err target_parked'*) ;; *) return 1 ;; esac
    case "$x$y" in *'"id":1,"error":"target_parked"'*) ;; *) return 1 ;; esac
    printf 'x' | dd of=own.gguf bs=1 seek=$(($(stat -c %s own.gguf) - 1)) conv=notrunc 2>dd || return 1
    cp "$hybrid" own.gguf
    echo 'unpark target' >&7
    read -r x <&8 && case "$x" in 'err model_parked '*another\ file*) ;; *) echo "$x" && return 1 ;; esac
    cp "$t" own.gguf
    printf '%s\n' 'unpark target' "$p/a.tok 3" >&7
    read -r x <&8 && [ "$x" = '[unpark] target restored' ] && read -r x <&8 && case "$x" in 'ok N=300 gen=3'*) ;; *) return 1 ;; esac
    exec 7>&- 8<&-
    wait $pid && [ "$(ids st | grep -cx -- -1)" = 5 ]
}
check parked parked

# The tokens that stay are those of dflash-prefill; a client that parks around it as one that lets it be done; what is not
# there or no scorer is said, behind one -1 each.
compressed() {
    cp "$dense" scorer.gguf
    printf '%s\n' "compress $p/a.tok 800 ./scorer.gguf" "$p/d.tok 2" 'park target' 'park draft' "compress	$p/a.tok	800	./scorer.gguf" \
        "$p/d.tok 2" 'free drafter' 'unpark target' "compress $p/a.tok 800 ./scorer.gguf nopark" unpark "$p/d.tok 2" SNAPSHOT\ 1 \
        "compress $p/a.tok 800 ./scorer.gguf nopark" 'SNAPSHOT 1' "compress $p/a.tok 800 ./scorer.gguf" 'SNAPSHOT 1' |
        serve --stream-fd 3 3>st >re 2>err || return 1
    two() { head -n 2 <(ids "$p/d.0.out"); }
    kept() { ids "$p/a.kept" && echo -1; }
    { kept; two; echo -1; echo -1; echo -1; kept; echo -1; echo -1; echo -1; kept; echo -1; two; echo -1; kept; kept; } | diff - <(ids st) || return 1
    printf '%s\n' 'ok N=90' '[park] target released' '[park] draft released' 'err target_parked' '[unpark] target restored' '[unpark] draft restored' \
        'ok N=90' '[snap] inline slot=1 cur_pos=92' '[snap] inline slot=1 cur_pos=92' '[snap] inline slot=1 cur_pos=-1' |
        diff - <(tail -n +2 re | sed 's/ gen=.*//') || return 1
    printf '\377\377\377\177' >wrong.tok
    dflash-quantize -q scorer.gguf -o unread.gguf --type COPY --override-kv tokenizer.ggml.pre=str:none || return 1 # its text, not its weights
    printf '%s\n' "compress $p/a.tok 800 $d" "compress $p/a.tok 800 none.gguf" "compress $p/a.tok 800 $p/a.tok" "compress $p/a.tok 800 ./unread.gguf" "compress $p/a.tok 300 ./scorer.gguf" \
        "compress none.tok 500 ./scorer.gguf" 'compress ./wrong.tok 500 ./scorer.gguf nopark' "compress $p/a.tok 0 ./scorer.gguf" "$p/d.tok 2" |
        serve --stream-fd 3 3>st >re || return 1
    printf 'err %s\n' adapter_unavailable adapter_unavailable adapter_unavailable adapter_unavailable bad_args empty_prompt bad_prompt bad_args | cat - <(echo ok) |
        diff - <(tail -n +2 re | sed 's/^\(err [a-z_]*\) .*/\1/;s/^ok .*/ok/') || return 1
    { yes -- -1 | head -n 8; two; echo -1; } | diff - <(ids st) || return 1
    printf '%s\n' "compress $p/a.tok 800 ./scorer.gguf" | serve >re && grep -qx 'err no_stream_fd' re
}
check compressed compressed

# It runs alone, in turns: the models' memory is the scorer's meanwhile, a cancelled one or one whose time ends gives it back.
compressing() {
    cp "$dense" own.gguf && cp "$dense" scorer.gguf
    for _ in {1..60}; do cat "$p/all"; done >long.tok
    mkfifo in.x out.x
    dflash-generate -q -m own.gguf -d "$d" $common --stream-fd 3 3>st <in.x >out.x &
    local pid=$! x i
    exec 7>in.x 8<out.x
    read -r _ <&8
    wait_for() { # TEXT of stats; sets x
        for ((i = 0; i < 1000; i++)); do
            echo '{"op":"stats"}' >&7 && read -r x <&8
            case "$x" in *"$1"*) return ;; esac
        done
        return 1
    }
    until_done() { while read -r x <&8; do case "$x" in *'"done"'*) break ;; esac; done; }
    for how in '' ' nopark'; do
        [ "$(grep -c own.gguf /proc/$pid/maps)" != 0 ] || return 1
        printf '%s\n' '{"id":1,"file":"'"$p"'/a.tok","n":40}' "compress ./long.tok 500 ./scorer.gguf$how" >&7
        until_done
        case "$x" in '{"id":1,'*) ;; *) echo "$x" && return 1 ;; esac # it waits for what runs
        case "$how" in
        '') wait_for '"target_parked":true,"draft_parked":true' || return 1 ;;
        *) wait_for '"running":1,"waiting":0' && wait_for '"target_parked":false,"draft_parked":false' || return 1 ;;
        esac
        echo '{"id":2,"prompt":[5],"n":2}' >&7 # and 2 for it
        wait_for '"running":1,"waiting":1' || return 1
        [ "$(grep -c scorer.gguf /proc/$pid/maps)" != 0 ] || return 1
        if [ -z "$how" ]; then [ "$(grep -c own.gguf /proc/$pid/maps)" = 0 ] || return 1; fi
        echo '{"op":"cancel","line":true}' >&7
        read -r x <&8 && [ "$x" = '{"op":"cancel","found":1}' ] && read -r x <&8 && [ "$x" = 'err cancelled' ] || return 1
        until_done
        case "$x" in '{"id":2,'*'"generated_tokens":2,'*) ;; *) echo "$x" && return 1 ;; esac
        [ "$(grep -c scorer.gguf /proc/$pid/maps)" = 0 ] || return 1
    done
    exec 7>&- 8<&-
    wait $pid && [ "$(list st)" = -1,-1 ] || return 1
    printf '%s\n' "compress ./long.tok 500 ./scorer.gguf" "$p/d.tok 0" | serve --stream-fd 3 --time-limit 0.3 3>st >re
    sed -n 2p re | grep -qx 'err timeout' && sed -n 3p re | grep -q -e '^ok' -e '^err timeout' && [ "$(list st)" = -1,-1 ]
}
check compressing compressing

# Flags hold for every line: it is what dflash-generate with them writes, cold, behind a kept beginning, behind parked models.
flags() {
    local c=$src/data/pair-hybrid/target/config.json q=$work/hybrid/d.tok
    dflash-convert -q "$c" --random 3 --type q8_0 --mtp keep -o both.gguf && dflash-convert -q "$c" --random 3 --type q8_0 --mtp only -o mtp.gguf || return 1
    dflash-convert -q "$src/test/family/qwen3moe.json" --random 3 --type f32 -o moe.gguf
    for i in {1..90}; do printf "\\x0$((i * i % 4))\0\0\0"; done >few.tok
    head -c 2800 "$p/all" >long.tok
    as_alone() { # PROMPT, flags
        local in=$1
        shift
        dflash-generate -q "$@" -n 12 --ctx 800 --chunk 64 --ignore-eos <"$in" >g0 && dflash-generate -q "$@" -n 12 --ctx 800 --chunk 64 --ignore-eos --temp 0.9 --seed 4 <"$in" >g1 || return 1
        printf '%s\n' "$in 12" "$in 12 samp=0.9,1,0,1,4" 'park draft' "$in 12" 'unpark' 'park target' 'unpark' "$in 12" |
            dflash-generate -q "$@" --serve --stream-fd 3 --ctx 800 --chunk 64 --ignore-eos 3>st >re || return 1
        { ids g0; echo -1; ids g1; echo -1; echo -1; ids g0; echo -1; echo -1; echo -1; echo -1; ids g0; echo -1; } | diff - <(ids st) || { echo "$*"; return 1; }
    }
    as_alone "$q" -m both.gguf -d target && as_alone "$q" -m both.gguf -d both.gguf --tree 6 && as_alone "$q" -m both.gguf -d mtp.gguf --width 3 &&
        as_alone "$q" -m both.gguf -d "$hybrid_d" --mtp target && as_alone "$q" -m both.gguf -d "$hybrid_d" --mtp mtp.gguf --mtp-block 3 --tree auto &&
        as_alone ./few.tok -m moe.gguf --experts-host 3 && as_alone "$p/d.tok" -m "$t" -d "$d" --kv-host-layers 2 && as_alone "$p/d.tok" -m "$t" -d "$d" --kv-host &&
        as_alone ./long.tok -m "$t" -d "$d" --pool 448 && as_alone "$p/d.tok" -m "$t" -d "$d" --kv q8_0,q4_0 --kv-layers 0=f16 --draft-kv q8_0 &&
        as_alone "$p/d.tok" -m "$t" -d "$d" --logit-bias 5=3 --samplers 'penalties;min_p;temperature' --min-p 0.1 --lookup on --draft-window 20 || return 1
    # the longer of two blocks has to fit
    printf '%s\n' './few.tok 20' './few.tok 7' | dflash-generate -q -m both.gguf -d "$hybrid_d" --mtp target --mtp-block 32 --serve --stream-fd 3 --ctx 128 3>st 2>/dev/null >re
    grep -q '^err context_overflow .*a block of 32' re && grep -q '^ok N=90 gen=7 ' re || { cat re; return 1; }
    dflash-generate -m "$t" --serve --sparse 0.1 </dev/null >o 2>e
    [ $? = 2 ] && grep -q '^dflash-generate: --sparse: ' e || return 1
    # states that were made otherwise; one that is compressed is gone on with, and said to be
    dflash-prefill -q -m "$t" --sparse 0.5 --chunk 128 -o sparse <long.tok && dflash-prefill -q -m "$t" --pool 448 --chunk 64 -o pool <long.tok &&
        dflash-prefill -q -m "$t" -d "$d" --compress 0.5 --chunk 64 -o less <long.tok 2>/dev/null || return 1
    dflash-generate -q -m "$t" --state less -n 9 --ignore-eos 2>/dev/null >g0
    printf '{"id":%d,"state":"%s","append":true,"n":9}\n' 1 sparse 2 pool 3 less | dflash-generate -m "$t" -d "$d" --serve --ctx 800 --chunk 64 --ignore-eos >re 2>err
    [ "$(grep -c '"id":[12],"error":"invalid_snapshot_slot"' re)" = 2 ] && grep -q '"done":true.*"compressed":{"text_tokens":700,' re && grep -q 'what was left out is lost' err &&
        sed -n 's/.*"id":3,"tokens":\[\(.*\)\].*/\1/p' re | tr ',' '\n' | diff - <(ids g0)
}
check flags flags

usage() {
    for f in '--serve -o x' '--stream-fd 3' '--serve --stream-fd 77' '--serve --stream-fd 2' '--listen s --stream-fd 3' '--serve --state x' '--root /' '--serve --root /nowhere'; do
        dflash-generate -m "$t" $f </dev/null >o 2>e 3>o3
        s=$?
        { [ $s = 2 ] || { [ $s = 4 ] && grep -q 'root: /nowhere' e; }; } || { echo "$s: $f"; cat e; return 1; }
    done
}
check usage usage

# ---- sockets ----
begin() { # FLAG...: a process that listens at s
    dflash-generate -q -m "$t" -d "$d" --ignore-eos --ctx 512 --chunk 64 --listen s "$@" 2>server.err &
    server=$!
    servers+=("$server")
    until [ -S s ] || ! kill -0 "$server" 2>/dev/null; do sleep 0.02; done
}
ask() { printf '%s\n' "$@" | timeout 60 "$client" talk s; }
ended() { # by what it was asked to
    kill -"$1" "$server"
    wait "$server"
    [ "$?" = "$2" ] && [ ! -e s ]
}

socket() {
    begin --root . --streams 3
    [ "$(stat -c %a s)" = 600 ] || return 1
    for i in 1 2 3 4; do "$client" socket $i $((lines / 7)) dense s >c.$i 2>&1 & pids[i]=$!; done
    for i in 1 2 3 4; do wait "${pids[i]}" || { cat c.$i; return 1; }; done
    ask 'LIST_SLOTS' | grep -qx '\[snap\] slots=' || return 1
    ask './a.tok 3' | grep -qx 'err no_stream_fd' || return 1
    ask '{"op":"quit"}'
    wait "$server" && [ ! -e s ] # an end at which sanitizers look for what was lost
}
check socket socket

roots() {
    mkdir -p root/in && cp "$p/a.tok" root/in && cp "$p/a.tok" outside.tok
    ln -sf ../outside.tok root/link && ln -sf /etc root/etc && ln -sf in/a.tok root/good && mkfifo root/fifo
    begin --root root
    for f in ../outside.tok link etc/passwd /etc/passwd in/../../outside.tok "$work/outside.tok" fifo in; do
        ask '{"id":1,"file":"'"$f"'","n":2}' | grep -q '"error":"bad_args"' || { echo "$f"; return 1; }
    done
    for f in in/a.tok ./in/a.tok good in/../in/a.tok "$work/root/in/a.tok"; do
        ask '{"id":1,"file":"'"$f"'","n":2}' | grep -q '"done":true' || { echo "$f"; return 1; }
    done
    ln -sf /tmp/nowhere.$$ root/out
    for f in ../out etc/out "$work/out" .. in/.. out /out; do
        ask '{"id":1,"prompt":[5],"n":2,"save_state":"'"$f"'"}' | grep -q '"error":"bad_args"' || { echo "out $f"; return 1; }
    done
    # on stdin too; a scorer is a file like others
    cp "$t" root/in/scorer.gguf && ln -sf "$work/root/in/scorer.gguf" root/far.gguf && ln -sf in/scorer.gguf root/near.gguf
    printf 'compress %s\n' "in/a.tok 800 ../dense/a.tok" "in/a.tok 800 $t" "in/a.tok 800 far.gguf" "in/a.tok 800 in" "../outside.tok 800 near.gguf" "in/a.tok 800 near.gguf" "./in/a.tok 800 $work/root/in/scorer.gguf" |
        serve --stream-fd 3 --root root 3>st >re && [ "$(grep -c '^err bad_args' re)" = 5 ] || return 1
    { yes -- -1 | head -n 5; for _ in 1 2; do ids "$p/a.kept"; echo -1; done; } | diff - <(ids st) || return 1
    ask '{"id":1,"prompt":[5],"n":2,"save_state":"in/out"}' '{"id":2,"prompt":[5],"n":2,"save_state":"'"$work"'/root/out2"}' | grep -c '"done":true' | grep -qx 2 && [ -s root/in/out ] && cmp root/in/out root/out2 || return 1
    ended TERM 143 || return 1
    begin # no root: no paths
    ask '{"id":1,"file":"a.tok","n":2}' | grep -q '"error":"bad_args".*--root' && ended HUP 129
}
check roots roots

# a request's time ends, and a place is free, also where its client reads nothing
stuck() {
    begin
    { for ((i = 0; i < 3000; i++)); do echo '{"op":"stats"}'; done; echo '{"id":1,"prompt":[5],"n":400,"timeout_s":0.2}'; sleep 2; } | "$client" talk s | sleep 2 &
    sleep 1
    ask '{"op":"stats"}' | grep -q '"running":0,"waiting":0' && ended TERM 143
}
check stuck stuck

# a client that asks for much is not in front of all others: they begin in turn
fair() {
    begin --root . --streams 1
    { for ((i = 0; i < 60; i++)); do echo '{"id":'$i',"file":"dense/a.tok","n":180,"cache":false}'; done; sleep 60; } | "$client" talk s >greedy.out &
    local greedy=$!
    until ask '{"op":"stats"}' | grep -q '"waiting":[1-9]'; do sleep 0.02; done
    for i in 1 2; do ask '{"id":1,"file":"dense/d.tok","n":2}' '{"op":"stats"}' | grep -q '"done":true' || return 1; done
    ask '{"op":"stats"}' | grep -q '"waiting":[3-5][0-9]' || { ask '{"op":"stats"}'; return 1; }
    kill $greedy
    ended TERM 143
}
check fair fair

# clients that are killed, that do not read, that come while another process listens
killed() {
    begin --root . --streams 2
    for i in 1 2 3 4 5 6; do
        { printf '{"id":%d,"file":"dense/a.tok","n":200}\n' 1 2 3; sleep 3; } | "$client" talk s >k.$i &
        k=$!
        sleep 0.$((i % 3 + 1))
        kill -9 $k
    done 2>/dev/null
    # a hundred more, at any moment, while one looks at every reply that it gets
    "$client" socket 9 $((lines / 7)) dense s >k.right 2>&1 &
    local right=$!
    for ((i = 0; i < 100; i++)); do
        { printf '{"id":%d,"file":"dense/%s.tok","n":60,"text":true}\n' 1 a 2 b 3 c; sleep 1; } | "$client" talk s >k.n 2>&1 &
        k=$!
        sleep 0.0$((i * 7 % 10))
        kill -9 $k
    done 2>/dev/null
    wait $right || { cat k.right; return 1; }
    ask '{"id":1,"file":"dense/a.tok","n":3}' | grep -q '"done":true,"stop":"length"' || return 1
    for _ in 1 2 3 4 5 6 7 8 9; do
        ask '{"op":"stats"}' | grep -q '"running":0,"waiting":0' && break
        sleep 0.2
    done
    ask '{"op":"stats"}' | grep '"running":0,"waiting":0' | grep -q '"cancelled":[1-9]' || return 1
    # one that never reads has 3 MB of replies to come: others are answered, and it is let go with its socket
    { for ((i = 0; i < 3000; i++)); do echo '{"op":"stats"}'; done; sleep 3; } | "$client" talk s | sleep 5 &
    sleep 0.5
    ask '{"id":1,"file":"dense/d.tok","n":3}' | grep -q '"done":true' || return 1
    ask '{"op":"quit"}'
    wait "$server" && [ ! -e s ] || return 1 # what killed clients left is gone too
    begin
    dflash-generate -q -m "$t" --listen s </dev/null 2>e
    [ "$?" = 2 ] && grep -q 'another process listens' e || return 1
    echo text >file
    dflash-generate -q -m "$t" --listen file </dev/null 2>e
    [ "$?" = 2 ] && grep -q 'is no socket' e && [ "$(cat file)" = text ] || return 1
    kill -9 "$server"
    wait "$server"
    [ -S s ] || return 1 # left behind, and replaced
    rm -f s.old
    begin_again
}
begin_again() {
    dflash-generate -q -m "$t" --ctx 64 --listen s 2>server.err &
    server=$!
    servers+=("$server")
    for _ in {1..100}; do ask '{"op":"quit"}' >o 2>&1 && break; sleep 0.05; done
    wait "$server" && [ ! -e s ]
}
check killed killed

echo "serve: $failed failed"
[ "$failed" = 0 ]
