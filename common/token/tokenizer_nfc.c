/* tokenizer_nfc.c - Unicode normalisation form C of a stream (Unicode Standard
 * Annex 15), data from utf8proc. */
#include <string.h>
#include <utf8proc.h>
#include "tokenizer_priv.h"

/* True if c starts a cluster whatever stands before it: it is a starter, and so is the first character of its
 * decomposition, and neither is ever the second half of a composition. Second halves are marks, the vowels
 * and finals of Hangul, and (Unicode 16) vowels of Kirat Rai. All marks count as not a boundary: that is
 * safe, and costs only a longer cluster. The test walks every code point. */
bool tok_nfc_boundary(int32_t c)
{
    /* U+11A7 stands just before the Hangul finals and is none of them. utf8proc's composition (2.8) takes it
     * for one, and swallows it: as the start of a cluster it never gets there. */
    if (c < 0x300 || c == 0x11a7) return true;
    if ((c >= 0x1160 && c <= 0x11ff) || (c >= 0x16d40 && c <= 0x16d7f)) return false;
    const utf8proc_property_t *p = utf8proc_get_property(c);
    return p->combining_class == 0 && p->category != UTF8PROC_CATEGORY_MN &&
           p->category != UTF8PROC_CATEGORY_MC && p->category != UTF8PROC_CATEGORY_ME;
}

/* True if c alone is its own NFC because it does not decompose (or is a Hangul
 * syllable, which recomposes). */
static bool inert(int32_t c)
{
    if (c < 0x300 || (c >= 0xac00 && c <= 0xd7a3)) return true;
    const utf8proc_property_t *p = utf8proc_get_property(c);
    return p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0;
}

/* Decode the valid sequence at p. */
static int32_t decode(const uint8_t *p, size_t *len)
{
    uint8_t c = p[0];
    if (c < 0x80) {
        *len = 1;
        return c;
    }
    if (c < 0xe0) {
        *len = 2;
        return (c & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (c < 0xf0) {
        *len = 3;
        return (c & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *len = 4;
    return (c & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

static int ccc(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Stable sort of a run of non-starters by combining class: by insertion where it is short, else by counting,
 * so that a megabyte of marks in the worst order stays linear (utf8proc's own sort is quadratic). tmp [n]. */
static void sort_marks(int32_t *cp, size_t n, int32_t *tmp)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = cp[i];
            size_t k = i;
            for (; k > 0 && ccc(cp[k - 1]) > ccc(c); k--) cp[k] = cp[k - 1];
            cp[k] = c;
        }
        return;
    }
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++) at[ccc(cp[i]) + 1]++;
    for (int i = 1; i < 257; i++) at[i] += at[i - 1];
    for (size_t i = 0; i < n; i++) tmp[at[ccc(cp[i])]++] = cp[i];
    memcpy(cp, tmp, n * sizeof *cp);
}

static int reserve(struct tok_nfc *x, size_t n, struct err *e)
{
    if (n <= x->cap) return 0;
    size_t cap = n + n / 2 + 64;
    int32_t *cp = cap > SIZE_MAX / 8 ? NULL : mem_realloc(x->cp, cap * sizeof *cp);
    if (!cp) return err_set(e, ERR_IO, "out of memory (normalising %zu characters)", cap);
    x->cp = cp;
    x->cap = cap;
    return 0;
}

/* One cluster: decompose, order the marks, compose. */
static int cluster(struct tok_nfc *x, const uint8_t *p, size_t n, struct tok_buf *out, struct err *e)
{
    /* A canonical decomposition is at most 4 characters, of at least 2 bytes in; the second half is sort's
     * work space. */
    size_t max = 4 * n;
    if (reserve(x, 2 * max, e)) return -1;
    size_t k = 0, len;
    for (size_t i = 0; i < n; i += len) {
        int32_t c = decode(p + i, &len);
        int boundclass = 0;
        utf8proc_ssize_t got = utf8proc_decompose_char(c, x->cp + k, (utf8proc_ssize_t)(max - k),
                                                       UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundclass);
        if (got < 0 || (size_t)got > max - k)
            return err_set(e, ERR_IO, "utf8proc: cannot decompose U+%04X", (unsigned)c);
        k += (size_t)got;
    }
    for (size_t i = 0; i < k;) {
        size_t j = i;
        while (j < k && ccc(x->cp[j])) j++;
        sort_marks(x->cp + i, j - i, x->cp + max);
        i = j + 1;
    }
    utf8proc_ssize_t m =
        utf8proc_normalize_utf32(x->cp, (utf8proc_ssize_t)k, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (m < 0) return err_set(e, ERR_IO, "utf8proc: %s", utf8proc_errmsg(m));
    for (utf8proc_ssize_t i = 0; i < m; i++) {
        uint8_t u[4];
        if (tok_buf_add(out, u, (size_t)utf8proc_encode_char(x->cp[i], u), e)) return -1;
    }
    return 0;
}

/* The end of the run of non-boundaries that starts at i. */
static size_t skip_marks(const uint8_t *p, size_t i, size_t n)
{
    while (i < n && p[i] >= 0xcc) { /* below: U+0000 to U+02FF, boundaries all */
        size_t len;
        if (tok_nfc_boundary(decode(p + i, &len))) break;
        i += len;
    }
    return i;
}

int tok_nfc_add(struct tok_nfc *x, const uint8_t *p, size_t n, bool end, struct tok_buf *out, struct err *e)
{
    size_t i = 0;
    if (x->held.n) {
        i = skip_marks(p, 0, n);
        if (tok_buf_add(&x->held, p, i, e)) return -1;
        if (i == n && !end) return 0;
        if (cluster(x, x->held.p, x->held.n, out, e)) return -1;
        x->held.n = 0;
    }
    size_t run = i; /* p[run .. i) is its own normal form */
    while (i < n) {
        while (i + 1 < n && p[i] < 0x80 && p[i + 1] < 0x80) i++;
        size_t len;
        int32_t c = decode(p + i, &len);
        size_t j = skip_marks(p, i + len, n);
        if (j == n && !end) break;
        if (j == i + len && inert(c)) {
            i = j;
            continue;
        }
        if (tok_buf_add(out, p + run, i - run, e) || cluster(x, p + i, j - i, out, e)) return -1;
        run = i = j;
    }
    if (tok_buf_add(out, p + run, i - run, e)) return -1;
    return tok_buf_add(&x->held, p + i, n - i, e);
}

void tok_nfc_free(struct tok_nfc *x)
{
    mem_free(x->held.p);
    mem_free(x->cp);
}
