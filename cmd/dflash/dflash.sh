#!/bin/sh
# dflash - text in one command: the pipe of dflash-tokenize, dflash-generate and dflash-tokenize --decode. -v prints it.
set -u
usage_run="usage: dflash run -m TARGET.gguf [-d DRAFTER.gguf] [--chat] [flags] [PROMPT]"
usage_chat="usage: dflash chat -m TARGET.gguf [-d DRAFTER.gguf] [--state FILE] [flags] [MESSAGE]"
usage_pair="usage: dflash pair TARGET.gguf DRAFTER.gguf [flags] [PROMPT]"

# The programs stand beside this one; else they are on PATH.
case $0 in */*) PATH=$(cd "$(dirname "$0")" && pwd):$PATH ;; esac
export PATH

verb='' work=''
say() { printf 'dflash%s: %s\n' "${verb:+ $verb}" "$*" >&2; }
fail() { # STATUS MESSAGE
    status=$1
    shift
    say "$*"
    [ "$status" != 2 ] || echo "try 'dflash${verb:+ $verb} --help'" >&2
    exit "$status"
}

help() {
    case $verb in
    '')
        echo "usage: dflash run | chat | pair [flags]"
        echo
        echo "Text in one command, over the programs beside this one; -v prints the pipe that runs."
        echo
        echo "  run       go on with a text, or answer a question (--chat)"
        echo "  chat      a conversation, each turn at the cost of its own tokens"
        echo "  pair      does this drafter fit that target, and what does it gain here?"
        echo
        echo "flags:"
        ;;
    run)
        echo "$usage_run"
        echo
        echo "Write what follows PROMPT, or standard input where there is none."
        echo
        echo "flags:"
        echo "  --chat                    PROMPT is a question in the model's chat template"
        echo "  --chat-system TEXT        with --chat: a system message before it"
        ;;
    chat)
        echo "$usage_chat"
        echo
        echo "Answer MESSAGE, or every line of standard input. Ctrl-C ends an answer, and the chat goes on."
        echo
        echo "flags:"
        echo "  --state FILE              keep the chat there, and go on with it if it is there"
        echo "  --chat-system TEXT        a system message at the beginning"
        ;;
    pair)
        echo "$usage_pair"
        echo
        echo "Ask dflash-inspect --pair, then write a text twice, with the drafter and without, and compare."
        echo
        echo "flags:"
        ;;
    esac
    if [ "$verb" = run ] || [ "$verb" = chat ]; then
        echo "  -m TARGET                 target model, a GGUF file"
        echo "  -d DRAFTER                drafter for it, a GGUF file"
        echo "  --chat-template NAME      a template by its name, whatever the model carries"
        echo "  --chat-date TEXT          the day in a template that names one"
        echo "  --think                   ask the model to think before it answers"
        echo "  --no-think                ask it not to"
    fi
    if [ -n "$verb" ]; then
        echo "  -n N                      tokens to write at most (default $n)"
        echo "  ...                       any other flag of dflash-generate, as --temp T or --device NAME"
    fi
    echo "  -q                        no notes; warnings and errors stay"
    echo "  -v                        print the commands, and what they have to say"
    echo "  -h, --help                print this and exit"
    echo "  --version                 print the version and exit"
    echo
    echo "exit status: 0 ok, 1 negative answer, 2 usage, 3 malformed or unsupported input, 4 I/O or memory, 5 device"
}

# What an answer was worth: help that cannot be written is an error.
print_help() {
    help || exit 4
    exit 0
}

# ---- words of a command: quoted for people, and kept in one string for eval ----

quote() { # WORD; the full stop keeps ends of lines, which $() takes away
    case $1 in
    '' | *[!a-zA-Z0-9/._+=:@%,-]*)
        quoted=$(printf '%s.' "$1" | sed "s/'/'\\\\''/g")
        printf "'%s'" "${quoted%.}"
        ;;
    *) printf '%s' "$1" ;;
    esac
}

generate='' drafting='' tokenize=''
add() { # generate|drafting|tokenize WORD...
    to=$1
    shift
    while [ $# -gt 0 ]; do
        eval "$to=\"\$$to \$(quote \"\$1\")\""
        shift
    done
}

trace() { [ "$notes" != v ] || printf '+ %s\n' "$*" >&2; }

# ---- flags ----

stays=1 m='' d='' n=1024 chat='' system='' has_system='' state='' notes='' text='' has_text=''
value() { # FLAG COUNT [VALUE]
    [ "$2" -gt 1 ] || fail 2 "$1 needs a value"
    case $3 in '') fail 2 "$1: the value is empty" ;; esac
}

# Does dflash-generate have this flag, and does it take a value? Its help says so: "  --temp T    ...".
flag_kind() { # FLAG
    case $1 in *[!a-z0-9-]*) return ;; esac
    [ -n "${flags:-}" ] || flags=$(dflash-generate --help) || fail 4 "dflash-generate --help failed: is it beside dflash?"
    printf '%s\n' "$flags" | sed -n "s/^  $1 [^ ].*/value/p; s/^  $1\$/flag/p; s/^  $1  .*/flag/p" | sed 1q
}

take_text() {
    [ -z "$has_text" ] || fail 2 "more than one text (quote it: 'two words')"
    text=$1 has_text=1
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
        --) shift && break ;;
        --*=*) # as two words
            whole=$1
            shift
            set -- "${whole%%=*}" "${whole#*=}" "$@"
            continue
            ;;
        esac
        case $1 in
        -h | --help) print_help ;;
        -q | -v) notes=${1#-} ;;
        -m) value "$1" $# "${2:-}" && m=$2 && shift ;;
        -d) value "$1" $# "${2:-}" && d=$2 && shift ;;
        -n) value "$1" $# "${2:-}" && n=$2 && shift ;;
        --chat)
            [ "$verb" = run ] || fail 2 "$1 is for run"
            chat=1
            ;;
        --state)
            [ "$verb" = chat ] || fail 2 "$1 is for chat"
            value "$1" $# "${2:-}" && state=$2 && shift
            ;;
        --chat-system)
            [ "$verb" != pair ] || fail 2 "$1 is for run and chat"
            value "$1" $# "${2:-}" && system=$2 has_system=1 && shift
            ;;
        --chat-template | --chat-date)
            [ "$verb" != pair ] || fail 2 "$1 is for run and chat"
            value "$1" $# "${2:-}" && add tokenize "$1" "$2" && shift
            ;;
        --think | --no-think)
            [ "$verb" != pair ] || fail 2 "$1 is for run and chat"
            add tokenize "$1"
            ;;
        --stop-text)
            value "$1" $# "${2:-}" && add generate "$1" "$2" && shift
            stays='' # a process that stays takes them by request
            ;;
        --serve | --stream-fd | --listen | --root | --streams | --slot-bytes | --time-limit | -o | --force | --append | --save-state | --stats | --logprobs | --draft-trace | --draft-logits)
            fail 2 "$1 is for dflash-generate itself (-v prints its command)"
            ;;
        -?*)
            case $1 in --width | --block | --plan-times | --calibration | --draft-*) to=drafting ;; *) to=generate ;; esac
            case $(flag_kind "$1") in
            value)
                value "$1" $# "${2:-}"
                add $to "$1" "$2"
                shift
                ;;
            flag) add $to "$1" ;;
            *)
                why=$(dflash-generate "$1" 2>&1 </dev/null | sed -n 's/^dflash-generate: //p' | sed 1q)
                case $why in unknown*) fail 2 "$why" ;; *) fail 2 "unknown flag $1" ;; esac
                ;;
            esac
            ;;
        *) take_text "$1" ;;
        esac
        shift
    done
    while [ $# -gt 0 ]; do
        take_text "$1"
        shift
    done
}

# ---- one turn ----

# The text of $text to the ids of work/prompt, by tokenize's words in $1.
encode() {
    trace "printf %s $(quote "$text") | dflash-tokenize $1 > prompt.tok"
    printf '%s' "$text" | eval "dflash-tokenize $1" >"$work/prompt"
}

# generate's words in $1, ids of work/prompt, text on stdout. Sets status: generate's, or what decoding failed with. Ctrl-C
# ends the answer, not this program, nor the one that decodes.
answer() {
    quiet=-q
    [ "$notes" != v ] || quiet=
    trace "dflash-generate $1 < prompt.tok | dflash-tokenize -m $(quote "$m") --decode"
    rm -f "$work/stats" "$work/status"
    trap : INT
    {
        trap : INT
        eval "dflash-generate $quiet $1 --stats \"\$work/stats\"" <"$work/prompt"
        echo $? >"$work/status"
    } | (
        trap '' INT
        exec dflash-tokenize -m "$m" --decode
    )
    decoded=$?
    trap 'exit 130' INT
    status=$(cat "$work/status") || status=4
    [ "$status" != 0 ] || status=$decoded
    [ "$status" != 0 ] && [ "$status" != 130 ] || [ ! -t 1 ] || echo
}

# ---- one process for all turns of a chat (docs/serve.md) ----

in_json() { # a text as JSON has it
    printf '%s' "$1" | sed 's/[\\"]/\\&/g'
}

# Requests go to 6, replies come from 7. Ctrl-C is not its business: the answer is cancelled by a request.
begin_process() {
    mkfifo "$work/in" "$work/out" || fail 4 "no pipes in $work"
    quiet=-q
    [ "$notes" != v ] || quiet=
    trace "dflash-generate $generate --serve"
    (
        trap '' INT
        eval "exec dflash-generate $quiet $generate --serve --slot-bytes 1000000000000" <"$work/in" >"$work/out"
    ) &
    process=$!
    exec 6>"$work/in" 7<"$work/out"
    IFS= read -r _ <&7 || {
        wait $process
        exit $?
    }
    asked=0
}

octal() { byte="\\$(($1 / 64))$(($1 / 8 % 8))$(($1 % 8))"; }

# The reply's ids as int32, little-endian; the last one, how it ended and the status into work.
take_reply() {
    last='' rest='' cut=''
    trap 'cut=1; printf "{\"op\":\"cancel\",\"cancel\":%s}\n" "$asked" >&6' INT
    printf '%s\n' "$request" >&6
    while :; do
        IFS= read -r line <&7 || { # by Ctrl-C, or it has ended
            rest=$rest$line
            [ -n "$cut" ] && kill -0 $process 2>/dev/null && continue
            break
        }
        line=$rest$line rest=''
        case $line in
        '{"op":'*) ;;
        *'"error":'*)
            echo "$line" >"$work/error"
            break
            ;;
        *'"done":true'*)
            case $line in *'"generated_tokens":0,'*) ;; *) printf '%s\n' "$line" >"$work/stats" ;; esac
            case $line in *'"stop":"cancelled"'*) echo 130 ;; *) echo 0 ;; esac >"$work/status"
            break
            ;;
        *'"tokens":['*)
            line=${line#*'"tokens":['}
            IFS=,
            for last in ${line%%]*}; do # no process for it: Ctrl-C would end that
                octal $((last & 255)) && bytes=$byte
                octal $((last >> 8 & 255)) && bytes=$bytes$byte
                octal $((last >> 16 & 255)) && bytes=$bytes$byte
                octal $((last >> 24)) && printf "$bytes$byte"
            done
            unset IFS
            ;;
        esac
    done
    [ -z "$last" ] || echo "$last" >"$work/last"
}

# As answer, by the process.
ask_process() { # KEYS of the request
    asked=$((asked + 1))
    request="{\"id\":$asked,\"file\":\"$(in_json "$work/prompt")\",$1}"
    trace "$request"
    rm -f "$work/stats" "$work/status" "$work/error"
    trap : INT
    take_reply | (
        trap '' INT
        exec dflash-tokenize -m "$m" --decode
    )
    decoded=$?
    trap 'exit 130' INT
    status=4
    [ ! -e "$work/status" ] || status=$(cat "$work/status")
    [ ! -e "$work/error" ] || say "$(sed 's/.*"error":"\([^"]*\)","message":"\(.*\)"}$/\1: \2/' "$work/error")"
    [ "$status" != 0 ] || status=$decoded
    [ "$status" != 0 ] && [ "$status" != 130 ] || [ ! -t 1 ] || echo
}

# Behind an answer the token that ends a turn stands, or it is written first: --continue cut begins with it.
encode_behind() { # WORDS
    encode "$1 --continue cut" || return
    [ "$(od -An -td4 -N4 "$work/prompt" | tr -d ' ')" = "$(cat "$work/last")" ] || return 0
    tail -c +5 "$work/prompt" >"$work/rest" && mv "$work/rest" "$work/prompt"
}

# The turn of $text by the process. Slot 0 is the chat.
turn_there() {
    words="-m $(quote "$m") --chat --chat-text$tokenize"
    ask='"snapshot":0'
    [ -z "$state" ] || ask="$ask,\"save_state\":\"$(in_json "$state")\""
    if [ -e "$work/last" ]; then
        ask="\"restore\":0,\"append\":true,$ask"
        encode_behind "$words"
    elif [ -n "$state" ] && [ -e "$state" ]; then
        ask="\"state\":\"$(in_json "$state")\",\"append\":true,$ask"
        encode "$words --continue $(quote "$state")"
    else
        [ -z "$has_system" ] || words="$words --chat-system $(quote "$system")"
        encode "$words"
    fi || {
        status=$?
        return
    }
    ask_process "$ask"
    note_cut
    [ "$status" != 130 ] || [ "$notes" = q ] || [ -e "$work/stats" ] || say "interrupted: this turn is not in the chat"
}

# Was it cut by -n?
note_cut() {
    [ "$notes" != q ] && [ "$status" = 0 ] || return 0
    grep '"stop":"length"' "$work/stats" >/dev/null || return 0
    say "cut after $n tokens (-n N writes more)"
}

make_work() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/dflash.XXXXXX") || fail 4 "no folder for temporary files"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
}

models() { # the words that all of a turn's commands share
    [ -n "$m" ] || fail 2 "-m TARGET is missing"
    add generate -n "$n"
    generate="-m $(quote "$m")${d:+ -d $(quote "$d")}$generate"
    [ "$verb" = pair ] || generate=$generate$drafting
}

# ---- the verbs ----

run() {
    parse "$@"
    models
    [ -n "$chat" ] || [ -z "$has_system$tokenize" ] || fail 2 "$([ -n "$has_system" ] && echo --chat-system || echo "${tokenize# }") goes with --chat"
    [ -n "$has_text" ] || [ ! -t 0 ] || fail 2 "no PROMPT (expected a text, or one on standard input)"
    make_work
    words="-m $(quote "$m")$tokenize"
    [ -z "$chat" ] || words="$words --chat --chat-text"
    [ -z "$has_system" ] || words="$words --chat-system $(quote "$system")"
    if [ -n "$has_text" ]; then
        encode "$words" || exit
    else
        trace "dflash-tokenize $words > prompt.tok"
        eval "dflash-tokenize $words" >"$work/prompt" || exit
    fi
    answer "$generate"
    note_cut
    exit "$status"
}

# The turn of $text. The state is the old one where it fails.
turn() {
    words="-m $(quote "$m") --chat --chat-text$tokenize"
    resume="--save-state $(quote "$state")"
    if [ -e "$state" ]; then
        words="$words --continue $(quote "$state")"
        resume="--state $(quote "$state") --append $resume"
    elif [ -n "$has_system" ]; then
        words="$words --chat-system $(quote "$system")"
    fi
    encode "$words" || {
        status=$?
        return
    }
    answer "$generate $resume"
    note_cut
    # an answer that was ended by Ctrl-C is in the state; before its first token nothing is
    [ "$status" != 130 ] || [ "$notes" = q ] || [ -e "$work/stats" ] || say "interrupted: this turn is not in the chat"
}

chat() {
    parse "$@"
    models
    make_work
    case $state in -*) state=./$state ;; esac
    [ -z "$state" ] || [ ! -e "$state" ] || [ -z "$has_system" ] || fail 2 "--chat-system begins a chat, and $state goes on with one"
    case $work$state in *[[:cntrl:]]*) stays='' ;; esac # no name for JSON
    if [ -n "$has_text" ] || [ -z "$stays" ]; then
        [ -n "$state" ] || state=$work/state
        take_turn=turn
    else
        begin_process
        take_turn=turn_there
    fi
    if [ -n "$has_text" ]; then
        turn
        exit "$status"
    fi
    while :; do
        [ ! -t 0 ] || [ ! -t 2 ] || printf '> ' >&2
        IFS= read -r text || [ -n "$text" ] || break
        [ -n "$text" ] || continue
        $take_turn
        [ "$status" = 0 ] || [ "$status" = 130 ] || exit "$status"
        [ -t 1 ] || echo
    done
    [ ! -t 0 ] || [ ! -t 2 ] || echo >&2
    exit 0
}

number() { # KEY FILE: of a line of JSON; 0 where there is none
    x=$(sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$2")
    echo "${x:-0}"
}

pair() {
    n=128
    [ "${1:-}" != -h ] && [ "${1:-}" != --help ] || print_help
    [ $# -ge 2 ] || fail 2 "expected TARGET DRAFTER"
    case $1$2 in -*) fail 2 "expected TARGET DRAFTER before any flag" ;; esac
    m=$1 target=$1
    shift
    pair_drafter=$1
    shift
    parse "$@"
    [ -z "$d" ] && [ "$m" = "$target" ] || fail 2 "-m, -d: target and drafter are the first two words"
    models
    make_work
    LC_ALL=C # the point in numbers
    export LC_ALL
    [ -n "$has_text" ] || text='The first thing to know about a program is what it reads and what it writes. '
    trace "dflash-inspect --pair $(quote "$m") $(quote "$pair_drafter")"
    dflash-inspect --pair "$m" "$pair_drafter" || exit
    encode "-m $(quote "$m")" || exit
    for with in plain drafted; do
        words=$generate
        [ $with = plain ] || words="$words -d $(quote "$pair_drafter")$drafting"
        quiet=-q
        [ "$notes" != v ] || quiet=
        trace "dflash-generate $words < prompt.tok > $with.tok"
        eval "dflash-generate $quiet $words --ignore-eos --stats \"\$work/$with\"" <"$work/prompt" >"$work/$with.tok" || exit
    done
    printf 'plain:   %s tokens, %.1f a second\n' "$(number generated_tokens "$work/plain")" "$(number decode_tokens_per_s "$work/plain")"
    printf 'drafted: %s tokens, %.1f a second, tau %.2f over %s cycles\n' "$(number generated_tokens "$work/drafted")" \
        "$(number decode_tokens_per_s "$work/drafted")" "$(number tau "$work/drafted")" "$(number cycles "$work/drafted")"
    cmp "$work/plain.tok" "$work/drafted.tok" || fail 1 "the two streams differ: this is a defect"
    echo "the two streams are equal, byte for byte"
}

case ${1:-} in
run | chat | pair)
    verb=$1
    shift
    [ "$verb" != pair ] || n=128
    $verb "$@"
    ;;
-h | --help) print_help ;;
--version)
    version=$(dflash-tokenize --version) || exit
    echo "dflash ${version#dflash-tokenize }" || exit 4
    ;;
'') fail 2 "expected run, chat or pair" ;;
-*) fail 2 "expected run, chat or pair, got the flag $1 (flags stand behind them)" ;;
*) fail 2 "unknown command $1 (expected run, chat or pair)" ;;
esac
