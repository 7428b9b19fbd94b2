# Every file of data/malformed, opened by inspect: the message of EXPECT, exit status 3 (4: a shard that is not there).
cd "$SRC/data/malformed"
comm -3 <(ls | grep -vx EXPECT | sort) <(cut -f1 EXPECT | sort) # each file has a line, each line its file
[ "$(wc -l <EXPECT)" -ge 70 ] || echo "too few: $(wc -l <EXPECT)"
while IFS=$'\t' read -r file message; do
    [ "$file" = tokens.i32 ] && continue # no model file; prefill's tests have it
    want=3 rc=0
    case $message in *"No such file or directory") want=4 ;; esac
    out=$(dflash-inspect "$file" 2>&1) || rc=$?
    [ "$rc" = $want ] || echo "$file: exit status $rc (expected $want)"
    [ "${out%%$'\n'*}" = "dflash-inspect: $message" ] || printf '%s\n  expected: %s\n  got: %s\n' "$file" "$message" "$out"
done <EXPECT
echo checked
