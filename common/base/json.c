/* json.c - see json.h. */
#include "json.h"

#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io.h"
#include "mem.h"
#include "text.h"

void json_use_mem(void)
{
    json_set_alloc_funcs(mem_alloc, mem_free);
}

int json_parse(json_t **j, const void *data, uint64_t n, const char *name, struct err *e)
{
    json_error_t why;
    uint64_t failures = mem_failures();
    *j = NULL;
    memset(&why, 0, sizeof why);
    /* jansson reports some failed allocations as bad tokens, and where the buffer of a string cannot grow it
     * loses a character and goes on: through our functions both can be told apart. */
    json_use_mem();
    if (n > SIZE_MAX) return err_set(e, ERR_IO, "%s: out of memory (%" PRIu64 " bytes of JSON)", name, n);
    *j = json_loadb(n ? data : "", (size_t)n, JSON_REJECT_DUPLICATES, &why);
    if (mem_failures() != failures) {
        json_decref(*j);
        *j = NULL;
        return err_set(e, ERR_IO, "%s: out of memory (JSON)", name);
    }
    if (*j) return 0;
    static const char without[] =
        " without JSON_ALLOW_NUL"; /* an option of the library's, nothing that a user could set */
    char *const option = strstr(why.text, without), *const behind =
                                                        option ? option + sizeof without - 1 : NULL;
    if (option) memmove(option, behind, strlen(behind) + 1);
    return err_set(e, ERR_FORMAT, "%s: bad JSON in line %d, column %d: %.160s", name, why.line, why.column,
                   why.text);
}

int json_parse_file(json_t **j, const char *path, uint64_t cap, struct err *e)
{
    struct io_map m;
    int r;
    *j = NULL;
    if (io_map_open(&m, path, e)) return -1;
    if (m.size > cap)
        r = err_set(e, ERR_FORMAT, "%s: too long (expected at most %" PRIu64 " bytes, got %" PRIu64 ")", path,
                    cap, m.size);
    else
        r = json_parse(j, m.data, m.size, path, e);
    io_map_close(&m);
    return r;
}

json_t *json_text(const char *s, size_t n)
{
    json_t *j = json_stringn(s, n); /* NULL where the bytes are not UTF-8 */
    if (j) return j;
    char hex[3];
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) {
        snprintf(hex, sizeof hex, "%02x", (unsigned char)s[i]);
        json_array_append_new(bytes, json_string(hex));
    }
    return json_pack("{s:o}", "hex", bytes);
}

/* Bytes of the character at p that are to be escaped, or 0. */
static size_t to_escape(const uint8_t *p)
{
    return p[0] == 0x7f ? 1 : p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0 ? 2 : 0;
}

json_t *json_text_or_null(const char *s)
{
    return s ? json_text(s, strlen(s)) : json_null();
}

json_t *json_finite(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

char *json_line(const json_t *j, int digits)
{
    char *s = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION((size_t)digits)) : NULL, *out, *to;
    size_t n = 0;
    if (!s) return NULL;
    for (const uint8_t *p = (const uint8_t *)s; *p; p++) n += to_escape(p) != 0;
    if (!n) return s;
    to = out = mem_alloc(strlen(s) + 5 * n + 1);
    for (const uint8_t *p = (const uint8_t *)s;
         out && *p;) { /* only within strings is there anything but ASCII */
        const size_t k = to_escape(p);
        if (k)
            to += snprintf(to, 7, "\\u%04x", k == 1 ? p[0] : p[1]);
        else
            *to++ = (char)*p;
        p += k ? k : 1;
    }
    if (out) *to = 0;
    mem_free(s);
    return out;
}

const char *json_show(const json_t *j, char *buf, size_t n)
{
    if (!j) {
        snprintf(buf, n, "nothing");
        return buf;
    }
    size_t got = json_dumpb(j, buf, n - 1, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (got < n) {
        buf[got] = 0;
    } else { /* jansson filled what fits */
        buf[n - 1] = 0;
        if (n > 4) memcpy(buf + n - 4, "...", 4);
    }
    return buf;
}

/* ---- files of our own ---- */

int json_wrong(const char *where, const char *key, const char *expected, const json_t *found, struct err *e)
{
    char buf[96];
    return err_set(e, ERR_FORMAT, "%s: %s (expected %s, got %s)", where, key, expected,
                   json_show(found, buf, sizeof buf));
}

int json_only(const json_t *o, const char *where, const char *const *keys, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        const char *const *k = keys;
        char shown[96];
        while (*k && strcmp(*k, key)) k++;
        if (!*k)
            return err_set(e, ERR_FORMAT, "%s: unknown key %s (expected %s or another that is documented)",
                           where, text_quote(shown, sizeof shown, key, strlen(key), 48), *keys);
    }
    return 0;
}

char *json_exact(json_t *j, uint64_t failures)
{
    char *text = json_line(j, 17);
    json_decref(j);
    if (mem_failures() == failures) return text;
    mem_free(text);
    return NULL;
}

int json_put_file(char *text, const char *path, bool force, struct err *e)
{
    struct io_out o = {0};
    int rc = -1;
    if (!text)
        err_set(e, ERR_IO, "%s: out of memory (JSON)", path);
    else if (!io_out_open(&o, path, force, NULL, 0, e) && !io_out_write(&o, text, strlen(text), e) &&
             !io_out_write(&o, "\n", 1, e))
        rc = io_out_commit(&o, e);
    io_out_abort(&o);
    mem_free(text);
    return rc;
}
