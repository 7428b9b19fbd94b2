#!/bin/sh
# completions.sh - completions for bash, zsh and fish, made of what the programs' own --help prints: the flag table.
#
# usage: cmd/package/completions.sh BIN_DIR OUT_DIR
# Writes OUT_DIR/bash/NAME and OUT_DIR/fish/NAME.fish for every program, and OUT_DIR/zsh/_dflash for all of them.
#
# What a flag takes is seen by its argument: words where they are listed ("0|1"; "cpu or cuda[:N]" in the help of a NAME),
# else a file where it names one, else something that nothing can be said about.
set -eu
[ $# = 2 ] || {
    echo "usage: cmd/package/completions.sh BIN_DIR OUT_DIR" >&2
    exit 2
}
bin=$1 out=$2
tools="convert quantize inspect tokenize prefill generate bench"
mkdir -p "$out/bash" "$out/zsh" "$out/fish"
table=$(mktemp)
trap 'rm -f "$table"' EXIT

# A line a flag: program, verb or "-", flag, "none", "file", "any" or "words:a b c", its help.
flags_of() { # PROGRAM VERB: of the help on stdin
    awk -v program="$1" -v verb="$2" '
    function words_of(text,    n, part, i, list, all) {
        gsub(/\([^)]*\)/, "", text)
        gsub(/\[[^]]*\]/, "", text)
        gsub(/ or a [a-z]+: /, ", ", text)
        sub(/^.*: /, "", text)
        n = split(text, part, /, or |, | or /)
        for (i = 1; i <= n; i++) {
            gsub(/^ +| +$/, "", part[i])
            if (part[i] ~ /^another /) continue
            if (part[i] !~ /^[A-Za-z0-9_.-]+$/) return ""
            list = list (all++ ? " " : "") part[i]
        }
        return all > 1 ? list : ""
    }
    function takes(arg, help,    n, part, i, list, w) {
        if (arg == "") return "none"
        if (arg ~ /^(NAME|TYPE|HOW|WHAT|K\[,V\])$/) {
            w = words_of(help)
            if (w != "") return "words:" w
        }
        if (arg ~ /^(FILE|K FILE|DIR|HF_DIR|DIR\|GGUF|STATE|TARGET|DRAFTER|MODEL.gguf|TOKENS|PATH)$/) return "file"
        n = split(arg, part, "|")
        for (i = 1; i <= n; i++) if (part[i] ~ /^[a-z0-9]+$/) list = list (list == "" ? "" : " ") part[i]
        return n > 1 && list != "" ? "words:" list : "any"
    }
    function emit() {
        if (flag != "") print program "\t" verb "\t" flag "\t" takes(arg, help) "\t" help
        flag = ""
    }
    /^flags:/ { on = 1; next }
    /^exit status:/ { emit(); on = 0 }
    !on { next }
    /^  -/ {
        emit()
        line = substr($0, 3)
        if (match(line, /  +/)) { # at least two blanks before the help
            left = substr(line, 1, RSTART - 1)
            help = substr(line, RSTART + RLENGTH)
        } else {
            left = line
            help = ""
        }
        if (left ~ /^-h, --help/) { flag = "-h"; arg = ""; emit(); left = "--help" }
        flag = arg = left
        sub(/ .*/, "", flag)
        if (!sub(/^[^ ]+ /, "", arg)) arg = ""
        next
    }
    /^   / && flag != "" { sub(/^ +/, ""); help = $0 }
    END { emit() }'
}

for t in $tools; do
    "$bin/dflash-$t" --help >"$table.help"
    flags_of "dflash-$t" - <"$table.help" >>"$table"
    # verbs stand in the lines that say how it is called
    [ $t = bench ] || continue
    for v in $(sed -n 's/^\(usage:\|      \) dflash-bench \([a-z]*\) .*/\2/p' "$table.help"); do
        "$bin/dflash-$t" "$v" --help | flags_of dflash-$t "$v" >>"$table"
    done
done
"$bin/dflash" --help >"$table.help"
flags_of dflash - <"$table.help" >>"$table"
for v in $(sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p' "$table.help"); do
    "$bin/dflash" "$v" --help | flags_of dflash "$v" >"$table.verb"
    # "any other flag of dflash-generate"
    awk -F '\t' -v verb="$v" 'NR == FNR { has[$3] = 1; print; next }
        $1 == "dflash-generate" && !has[$3] { print "dflash\t" verb "\t" $3 "\t" $4 "\t" $5 }' "$table.verb" "$table" >"$table.all"
    cat "$table.all" >>"$table"
done
rm -f "$table.help" "$table.verb" "$table.all"

programs=$(cut -f1 "$table" | sort -u)
made="made by cmd/package/completions.sh from the programs' --help"

verbs_of() { # PROGRAM
    awk -F '\t' -v p="$1" '$1 == p && $2 != "-" && !seen[$2]++ { printf "%s%s", n++ ? " " : "", $2 }' "$table"
}

# ---- bash: one file a program ----
bash_flags() { # PROGRAM VERB INDENT: what its flags take, then the flags
    awk -F '\t' -v p="$1" -v v="$2" -v in_="$3" '
    $1 == p && $2 == v {
        all = all (all == "" ? "" : " ") $3
        if ($4 == "file") file = file (file == "" ? "" : " | ") $3
        else if ($4 == "any") any = any (any == "" ? "" : " | ") $3
        else if ($4 ~ /^words:/) { w = substr($4, 7); if (!(w in of)) order[++n] = w; of[w] = of[w] (of[w] == "" ? "" : " | ") $3 }
    }
    END {
        print in_ "case $flag in"
        if (file != "") print in_ file ") kind=file ;;"
        if (any != "") print in_ any ") kind=any ;;"
        for (i = 1; i <= n; i++) print in_ of[order[i]] ") kind=words words=\"" order[i] "\" ;;"
        print in_ "esac"
        print in_ "flags=\"" all "\""
    }' "$table"
}
for p in $programs; do
    f=_$(echo "$p" | tr - _)
    verbs=$(verbs_of "$p")
    {
        echo "# bash completion of $p, $made"
        echo "$f()"
        echo "{"
        # "=" is a word of its own to bash: --flag=value is three
        cat <<'END'
    local cur=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} kind=none words= flags=
    if [[ $cur == = ]]; then
        cur=
    elif [[ $flag == = ]]; then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    COMPREPLY=()
END
        if [ -n "$verbs" ]; then
            echo "    if [[ \$COMP_CWORD == 1 ]]; then"
            echo "        mapfile -t COMPREPLY < <(compgen -W \"$verbs --help --version\" -- \"\$cur\")"
            echo "        return"
            echo "    fi"
            echo "    case \${COMP_WORDS[1]} in"
            for v in $verbs; do
                echo "    $v)"
                bash_flags "$p" "$v" "        "
                echo "        ;;"
            done
            echo "    esac"
        else
            bash_flags "$p" - "    "
        fi
        cat <<'END'
    case $kind in
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") ;;
    any) ;;
    none)
        [[ $cur != -* ]] || mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
        [[ $cur == -* ]] || mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        ;;
    file) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    esac
}
END
        echo "complete -o filenames -F $f $p"
    } >"$out/bash/$p"
done

# ---- fish: one file a program ----
for p in $programs; do
    {
        echo "# fish completion of $p, $made"
        verbs=$(verbs_of "$p")
        [ -z "$verbs" ] || echo "complete -c $p -n __fish_use_subcommand -x -a '$verbs'"
        awk -F '\t' -v p="$p" '
        $1 == p {
            help = $5
            gsub(/\\/, "\\\\", help)
            gsub(/\x27/, "\\\x27", help)
            short = $3 ~ /^-[^-]$/
            name = substr($3, short ? 2 : 3)
            printf "complete -c %s%s -%s %s", p, $2 == "-" ? "" : " -n \x27__fish_seen_subcommand_from " $2 "\x27", short ? "s" : "l", name
            if ($4 == "file") printf " -r -F"
            else if ($4 == "any") printf " -x"
            else if ($4 ~ /^words:/) printf " -x -a \x27%s\x27", substr($4, 7)
            printf " -d \x27%s\x27\n", help
        }' "$table"
    } >"$out/fish/$p.fish"
done

# ---- zsh: one file for all ----
zsh_flags() { # PROGRAM VERB INDENT
    echo "$3_arguments \\"
    awk -F '\t' -v p="$1" -v v="$2" -v in_="$3" '
    $1 == p && $2 == v {
        help = $5
        gsub(/[][\\]/, "\\\\&", help)
        gsub(/:/, "\\:", help)
        gsub(/\x27/, "\x27\\\x27\x27", help)
        long = $3 ~ /^--/
        printf "%s    \x27%s%s%s[%s]", in_, $5 ~ /repeatable/ ? "*" : "", $3, long && $4 != "none" ? "=" : "", help
        if ($4 == "file") printf ":file:_files"
        else if ($4 == "any") printf ":value: "
        else if ($4 ~ /^words:/) printf ":value:(%s)", substr($4, 7)
        print "\x27 \\"
    }' "$table"
    echo "$3    '*:file:_files'"
}
{
    # shellcheck disable=SC2086
    echo "#compdef" $programs
    echo "# $made"
    echo "case \$service in"
    for p in $programs; do
        verbs=$(verbs_of "$p")
        echo "$p)"
        if [ -n "$verbs" ]; then
            echo "    if ((CURRENT == 2)); then"
            echo "        compadd -- $verbs --help --version"
            echo "        return"
            echo "    fi"
            echo "    local verb=\$words[2]"
            echo "    shift words"
            echo "    ((CURRENT--))"
            echo "    case \$verb in"
            for v in $verbs; do
                echo "    $v)"
                zsh_flags "$p" "$v" "        "
                echo "        ;;"
            done
            echo "    esac"
        else
            zsh_flags "$p" - "    "
        fi
        echo "    ;;"
    done
    echo "esac"
} >"$out/zsh/_dflash"
