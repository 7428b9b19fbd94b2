# The page of a report: text of files is escaped, nothing is asked of the network, plots are of what was measured. Where there is
# a Chromium it is shown at two widths, light and dark: no part is wider than the window, and tables sort.
evil='<script>alert(1)</script>"&'
cell() { # CLASS TARGET DRAFTER PLAIN DRAFTED TAU
    echo "{\"schema\":1,\"kind\":\"cell\",\"label\":\"$1 greedy\",\"tags\":{\"class\":\"$1\",\"setting\":\"greedy\",\"plan\":\"\"},\"target\":{\"file\":\"$2\"},\"drafter\":{\"file\":\"$3\"},\
\"runs\":5,\"prompts\":1,\"prompt_tokens\":9,\"settings\":{\"n\":64},\"machine\":{\"device\":\"cpu\",\"processor\":\"P\",\"threads\":2,\"date\":\"2026-01-02T03:04:05Z\"},\
\"plain\":{\"decode_tokens_per_s\":{\"median\":$4,\"each\":[$4]}},\"drafted\":{\"decode_tokens_per_s\":{\"median\":$5,\"each\":[$5]},\"tau\":$6,\"accepted_histogram\":[4,3,2,1],\
\"plan\":{\"plain_cycles\":6,\"drafted_cycles_by_rows\":[[4,3]],\"tree_cycles_by_rows\":[[16,1]],\"equality_by_slot\":[[1,10,0.75,0.5],[2,4,0.5,0.25]]}},\"equal\":true}"
}
row() { echo "{\"schema\":1,\"kind\":\"rows\",\"target\":{\"file\":\"t\"},\"rows\":$1,\"prompt\":false,\"context\":8,\"seconds\":{\"median\":$2},\"floor_bytes_s\":0.001,\"floor_products_s\":$3,\"machine\":{\"device\":\"cpu\",\"threads\":2}}"; }
{
    cell code q4.gguf d.gguf 100 250 3.25
    cell prose q4.gguf d.gguf 101 150.5 1.5
    cell chat target-iq2_xxs.gguf drafter-dflash2-q4_k_m.gguf 60 70 1.25
    cell "${evil//\"/\\\"}" q8.gguf "d<b>.gguf" 50 75 2
    row 1 0.002 0.0001 && row 8 0.004 0.0008
} >lines
dflash-bench report -q --html page.html --title "a <title> & more" lines >out
! grep -q '<script>alert\|d<b>' page.html || echo "text of a file is not escaped"
[ "$(grep -c '<script>' page.html)" = 1 ] && grep -q '&lt;script&gt;alert(1)&lt;/script&gt;&quot;&amp;' page.html || echo "a label is not there"
grep -q '<title>a &lt;title&gt; &amp; more</title>' page.html && grep -q 'Measured 2026-01-02T03:04:05Z' page.html || echo "title or date"
! grep -qE '(src|href)=|url\(|@import|https?:' page.html || echo "the page asks for something"
grep -q "content=\"default-src 'none'" page.html || echo "no policy"
for t in 'Speed by quantisation and drafter, greedy' 'Accepted length by class of prompt, greedy' 'Proposals kept, by slot, d.gguf, greedy' 'Time against rows, t, context 8, cpu' 'Calibration' 'Cycles by plan'; do
    grep -q "<b>$t</b>" page.html || echo "no plot '$t'"
done
# bars from zero: 250 of 300 (five steps of 100 or fewer) is as high as it should be
python=$(sed -n 's/.*height="\([0-9.]*\)"><title>q4.gguf, d.gguf: 200.2<.*/\1/p' page.html | head -n 1) # the mean of 250 and 150.5
awk -v h="$python" 'BEGIN { exit !(h > 0) }' || echo "no bar of the mean"
bar() { sed -n "s/.*height=\"\\([0-9.]*\\)\"><title>$1<.*/\\1/p" page.html | head -n 1; }
awk -v a="$(bar 'q4.gguf, plain: 100.5')" -v b="$(bar 'q4.gguf, d.gguf: 200.2')" 'BEGIN { exit !(a > 0 && b / a > 1.98 && b / a < 2.01) }' || echo "bars do not begin at zero"
[ "$(grep -c '<circle class="s1".*<title>measured, ' page.html)" = 2 ] && [ "$(grep -c '<polyline class="s[0-9] d"' page.html)" = 2 ] || echo "rows and their floors"
grep -q '<title>d.gguf, 0.75: 0.5</title>' page.html || echo "calibration"
# code: 6, 4 and 3 of 10 cycles keep 1, 2 and 3 (3 + 2 + 1, 2 + 1, 1 of 10)
for v in '1: 0.6' '2: 0.3' '3: 0.1'; do grep -q "<title>code, $v</title>" page.html || echo "slot $v"; done
grep -q '<title>q4.gguf, d.gguf, code greedy, tree, 16 rows: 0.1</title>' page.html || echo "cycles by plan"
# by class, in the tables too
tr -s ' ' <out | grep -q '^| q4.gguf | d.gguf | greedy | | 3.25 | 1.50 | - | - |$' || echo "accepted length by class"
# aligned in a terminal: a table's lines are equally wide
awk '/^\|/ { if (last && length($0) != width) bad = 1; width = length($0); last = 1; next } { last = 0 } END { exit bad }' out || echo "a table is not aligned"
# refused
try() { # PATTERN ARG...: exit 2
    rc=0 p=$1
    shift
    dflash-bench report "$@" >o 2>err || rc=$?
    [ $rc = 2 ] && grep -q -e "$p" err || echo "$*: $rc, $(cat err)"
}
try 'page.html: exists' lines --html page.html
try 'lines: .*input' lines --html lines --force
try 'write to the same place' lines --html x -o x
try 'title is a page' lines --title x
try 'slack says nothing' lines --slack 0.1
try 'gnuplot gives a script alone' lines --gnuplot --html x
try 'stdin is named 2 times' - --baseline -
[ ! -e x ] || echo "x was written"
# more drafters than a plot has bars: what is not drawn is said
for i in $(seq 14); do
    echo '{"schema":1,"kind":"cell","label":"a","target":{"file":"t"},"drafter":{"file":"d'$i'"},"plain":{"decode_tokens_per_s":{"median":1}},"drafted":{"decode_tokens_per_s":{"median":2},"tau":2}}'
done >many
dflash-bench report -q --html many.html many >o
[ "$(grep -o '[0-9]* values more have no room here' many.html | cut -d' ' -f1 | tr -d '\n')" = 32 ] || echo "values are left out in silence"
rc=0
echo '{"schema":1,"kind":"x"}' >odd && dflash-bench report -q --html odd.html odd >o 2>err || rc=$?
[ $rc = 0 ] && grep -q '</html>' odd.html || echo "a report of nothing: $rc"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "skipped: no Chromium is installed: the page was not looked at" >&2
    exit 0
}
cat >probe <<'END'
<script>
function cut() { return [].filter.call(document.querySelectorAll('.scroll table'), function (t) { return t.offsetWidth > t.parentNode.clientWidth }).length }
var wide = document.documentElement.scrollWidth, th = document.querySelector('table th.n'), at = th.cellIndex;
function column() { return [].map.call(th.closest('table').tBodies[0].rows, function (r) { return r.cells[at].textContent }).join(',') }
var said = 'fits=' + (wide <= innerWidth) + ' svg=' + document.querySelectorAll('svg').length;
th.click(); said += ' up=' + column(); th.click(); said += ' down=' + column();
said += ' cut=' + (innerWidth < 900 || cut()) + ' back=' + getComputedStyle(document.body).backgroundColor + ' small=' + [].some.call(document.querySelectorAll('svg'), function (s) { return s.getBoundingClientRect().width < 500 });
document.body.innerHTML = ''; document.body.setAttribute('data-said', said);
</script>
END
sed '/<\/body>/d' page.html >probed.html && cat probe >>probed.html
show() { # WIDTH DARK
    HOME=$PWD timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --window-size="$1,900" --blink-settings=preferredColorScheme="$2" \
        --dump-dom "file://$PWD/probed.html" 2>err | sed -n 's/.*data-said="\([^"]*\)".*/\1/p'
}
for w in 1280 500; do # a window is 500 wide at least
    cut=true # a narrow window scrolls its tables
    [ $w = 500 ] || cut=0
    for dark in 0 1; do
        back='rgb(255, 255, 255)'
        [ $dark = 1 ] || back='rgb(13, 17, 23)' # 0 is dark there
        said=$(show $w $dark)
        [ "$said" = "fits=true svg=8 up=50.0,60.0,100.0,101.0 down=101.0,100.0,60.0,50.0 cut=$cut back=$back small=false" ] || { echo "$w, $dark: $said" && tail -n 3 err; }
    done
done
