/* page.c - a report as one page of HTML that asks the network for nothing: its style and its script are in
 * it, and its policy forbids the rest. Text that comes from files passes html_put. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "bench.h"
#include "report.h"

static const char style[] =
    ":root{color-scheme:light "
    "dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--soft:#f6f8fa;--bad:#b3261e;--good:#1a7f37;"
    "--c0:#6e7781;--c1:#0969da;--c2:#d4761b;--c3:#1a7f37;--c4:#8250df;--c5:#bf3989;--c6:#1b7c83;--c7:#9a6700}"
    "\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#3d444d;--soft:#"
    "151b23;--bad:#ff7b72;"
    "--good:#56d364;--c0:#9198a1;--c1:#58a6ff;--c2:#f0883e;--c3:#56d364;--c4:#bc8cff;--c5:#f778ba;--c6:#"
    "39c5cf;--c7:#e3b341}}\n"
    "*{box-sizing:border-box}body{margin:0 "
    "auto;max-width:76rem;padding:1rem;background:var(--bg);color:var(--fg);"
    "font:16px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.6rem;margin:.3rem 0}h2{font-size:1.2rem;margin:2rem 0 .4rem;border-bottom:1px solid "
    "var(--line)}\n"
    "p,li{max-width:60rem}.dim,.note,figcaption span{color:var(--dim)}.note{font-size:.9rem}\n"
    ".bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}\n"
    "ul.made{padding-left:1.2rem;overflow-wrap:anywhere;font-size:.9rem}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-"
    "nums}\n"
    "th,td{padding:.25rem .45rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\n"
    "th{background:var(--soft);cursor:pointer;user-select:none;white-space:normal;vertical-align:bottom}th.n,"
    "td.n{text-align:right}\n"
    "th[aria-sort=ascending]::after{content:\" \\25b2\"}th[aria-sort=descending]::after{content:\" "
    "\\25bc\"}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:1rem}\n"
    "figure{margin:0;padding:.6rem;border:1px solid "
    "var(--line);border-radius:6px;min-width:0}figcaption{font-size:.9rem}\n"
    "svg{display:block;width:100%;min-width:36rem;height:auto;font:13px system-ui,sans-serif}svg "
    "text{fill:var(--fg)}"
    "svg .axis{fill:var(--dim)}\n"
    ".grid{stroke:var(--line)}.whisker{stroke:var(--fg);stroke-width:1.5}polyline{fill:none;stroke-width:2}"
    "polyline.d{stroke-dasharray:6 4}\n"
    ".key{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.3rem "
    "0;padding:0;font-size:.85rem}"
    ".key i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;border-radius:2px}.key "
    "i.d{height:.25rem;"
    "vertical-align:middle}\n";

static const char script[] =
    "document.querySelectorAll('th').forEach(function(th){\n"
    "  function sort(){\n"
    "    var "
    "row=th.parentNode,table=row.closest('table'),body=table.tBodies[0],at=Array.prototype.indexOf.call(row."
    "children,th);\n"
    "    var down=th.getAttribute('aria-sort')==='ascending',number=th.classList.contains('n');\n"
    "    Array.prototype.forEach.call(row.children,function(x){x.removeAttribute('aria-sort')});\n"
    "    th.setAttribute('aria-sort',down?'descending':'ascending');\n"
    "    Array.prototype.slice.call(body.rows).map(function(r,i){\n"
    "      var t=r.cells[at].textContent,v=number?parseFloat(t):t;return{r:r,i:i,v:v,none:number&&isNaN(v)}\n"
    "    }).sort(function(a,b){\n"
    "      if(a.none||b.none)return a.none-b.none||a.i-b.i;\n"
    "      var d=number?a.v-b.v:a.v.localeCompare(b.v,undefined,{numeric:true});return(down?-d:d)||a.i-b.i\n"
    "    }).forEach(function(x){body.appendChild(x.r)})\n"
    "  }\n"
    "  th.tabIndex=0;th.addEventListener('click',sort);\n"
    "  th.addEventListener('keydown',function(e){if(e.key==='Enter'||e.key===' "
    "'){e.preventDefault();sort()}})\n"
    "});\n";

void html_put(FILE *out, const char *s)
{
    for (size_t n = strlen(s), k; n; s += k, n -= k) {
        k = text_char(s, n);
        switch (k ? *s : '?') {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default:
            if (k)
                fwrite(s, 1, k, out);
            else
                fputc(*s == '\n' || *s == '\t' ? ' ' : '?', out);
        }
        if (!k) k = 1;
    }
}

static void element(FILE *out, const char *open, const char *text, const char *close)
{
    fputs(open, out);
    html_put(out, text);
    fputs(close, out);
}

/* "SLOWER", "NO": what asks to be looked at. */
static const char *weight(const char *text)
{
    static const char *const bad[] = {"NO", "DIFFER", "SLOWER", "NOT MEASURED"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!strncmp(text, bad[i], strlen(bad[i])) &&
            (text[strlen(bad[i])] == 0 || text[strlen(bad[i])] == ' '))
            return " bad";
    return !strcmp(text, "faster") ? " good" : "";
}

static void put_grid(FILE *out, const struct grid *g)
{
    element(out, "<h2>", g->title, "</h2>\n");
    if (*g->note) element(out, "<p class=\"note\">", g->note, "</p>\n");
    fputs("<div class=\"scroll\"><table><thead><tr>", out);
    for (int c = 0; c < g->n_col; c++)
        element(out, g->number[c] ? "<th class=\"n\">" : "<th>", g->head[c], "</th>");
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t r = 0; r < grid_rows(g); r++) {
        fputs("<tr>", out);
        for (int c = 0; c < g->n_col; c++) {
            const char *text = g->cell[r * (size_t)g->n_col + (size_t)c];
            fprintf(out, "<td class=\"%s%s\">", g->number[c] ? "n" : "", weight(text));
            element(out, "", text, "</td>");
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

/* From when to when lines were measured, or, of lines that do not say, when the page was made. */
static void put_when(FILE *out, const json_t *lines)
{
    const char *first = NULL, *last = NULL;
    char made[32] = "";
    const time_t now = time(NULL);
    struct tm tm;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *machine = json_object_get(json_array_get(lines, i), "machine");
        const char *d = json_string_value(json_object_get(machine, "date"));
        if (d && (!first || strcmp(d, first) < 0)) first = d;
        if (d && (!last || strcmp(d, last) > 0)) last = d;
    }
    if (!first && gmtime_r(&now, &tm)) strftime(made, sizeof made, "%Y-%m-%dT%H:%M:%SZ", &tm);
    element(out, first ? "<p class=\"dim\">Measured " : "<p class=\"dim\">Page of ", first ? first : made,
            "");
    if (first && strcmp(first, last) != 0) element(out, " to ", last, "");
    element(out, "; dflash-bench ", cli_version(), "</p>\n");
}

/* Each machine that a line is of, once. */
static void put_machines(FILE *out, const json_t *lines)
{
    char *seen = mem_strdup(""), text[700];
    size_t n = 0;
    fputs("<ul class=\"made\">\n", out);
    for (size_t i = 0; seen && i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (!json_is_object(json_object_get(j, "machine"))) continue;
        snprintf(text, sizeof text, "\n%s: %s, %s threads, instruction set %s, kernels %s; version %s %s\n",
                 bench_text(j, "machine", "device"), bench_text(j, "machine", "processor"),
                 bench_number(j, "machine", "threads", NULL, 0, 1), bench_text(j, "machine", "isa"),
                 bench_text(j, "machine", "kernels"), bench_text(j, "machine", "version"),
                 bench_text(j, "machine", "commit"));
        if (strstr(seen, text)) continue;
        char *more = mem_realloc(seen, n + strlen(text) + 1);
        if (!more) break;
        seen = more;
        strcpy(seen + n, text);
        n += strlen(text);
        element(out, "<li>", text, "</li>\n");
    }
    mem_free(seen);
    fputs("</ul>\n", out);
}

static void put_made(FILE *out, const json_t *lines)
{
    char *made = report_made(lines), *save = NULL;
    if (!made || !*made) {
        mem_free(made);
        return;
    }
    fputs("<h2>Settings</h2>\n<ul class=\"made\">\n", out);
    for (char *w = strtok_r(made, "\n", &save); w; w = strtok_r(NULL, "\n", &save))
        element(out, "<li>", w, "</li>\n");
    fputs("</ul>\n<h2>Legend</h2>\n", out);
    element(out, "<p class=\"note\">", report_cells_legend, "</p>\n");
    mem_free(made);
}

/* How many streams were compared, and those that differ by name. */
static void put_streams(FILE *out, const json_t *lines)
{
    size_t n = 0, equal = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i), *e = json_object_get(j, "equal");
        if ((!report_is(j, "compare") && !report_is(j, "cell")) || !json_is_boolean(e)) continue;
        n++;
        equal += json_is_true(e);
    }
    if (!n) return;
    fprintf(out,
            "<p class=\"%s\">%zu of %zu comparisons of drafted streams with plain ones are equal to the "
            "byte.</p>\n",
            n == equal ? "good" : "bad", equal, n);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (!report_is(j, "compare") || !json_is_false(json_object_get(j, "equal"))) continue;
        element(out, "<p class=\"bad\">", bench_text(j, NULL, "a"), "");
        element(out, " and ", bench_text(j, NULL, "b"), "");
        element(out, " part at token ", bench_number(j, "first_difference", NULL, NULL, 0, 1), "</p>\n");
    }
}

void page_write(const struct page *p, FILE *out)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src "
          "'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
          out);
    element(out, "<title>", p->title, "</title>\n");
    fprintf(out, "<style>\n%s", style);
    for (int i = 0; i < 8; i++)
        fprintf(out,
                "rect.s%d,circle.s%d{fill:var(--c%d)}polyline.s%d{stroke:var(--c%d)}.key "
                ".s%d{background:var(--c%d)}\n",
                i, i, i, i, i, i, i);
    fputs("</style></head><body>\n", out);
    element(out, "<h1>", p->title, "</h1>\n");
    put_when(out, p->lines);
    put_machines(out, p->lines);
    put_streams(out, p->lines);
    if (*p->verdict) element(out, "<p>", p->verdict, "</p>\n");
    fputs("<div class=\"plots\">\n", out);
    charts_write(p->lines, p->cells, out);
    fputs("</div>\n", out);
    for (int i = 0; i < p->n_grid; i++) put_grid(out, &p->grid[i]);
    put_made(out, p->lines);
    fprintf(out, "<script>\n%s</script>\n</body></html>\n", script);
}
