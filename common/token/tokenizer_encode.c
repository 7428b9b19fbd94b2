/* tokenizer_encode.c - bytes to ids as a stream, in three stages, each holding back only what later bytes
 * could change:
 *
 *   scan    raw bytes: special tokens, ill-formed UTF-8, and the valid text between them (a segment)
 *   nfc     text of a segment to normalised text (tokenizer_nfc.c)
 *   split   normalised text to pieces by the model's regular expression, or between characters that no merge
 *           ever brings together, and pieces to ids (tokenizer_bpe.c)
 *
 * Held back: in scan, an unfinished UTF-8 sequence or the beginning of a special token; in nfc, the last
 * character and its marks; in split, text of which PCRE2's hard partial matching says that the match looked
 * at its end, or what follows the last place between such characters. A segment's end releases everything. So
 * the ids are a function of the bytes alone, however they were cut. */
#include <string.h>
#include "tokenizer_priv.h"

#define STEP 65536 /* bytes taken in at once: bounds the buffers for ordinary text */
#define N_OUT 4096

struct tok_encoder {
    const struct tokenizer *t;
    enum tok_special special;
    bool nfc_on, spaces_on, failed;
    bool fresh;         /* a special token or nothing stands before the text to come: a space prefix is due */
    struct tok_buf raw; /* not yet scanned */
    struct tok_nfc nfc;
    struct tok_buf text; /* normalised, not yet split */
    size_t retry;        /* length of text at which to look for a piece again */
    size_t seen;         /* SentencePiece style: text up to here has no place to split */
    struct tok_bpe bpe;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int32_t out[N_OUT];
    size_t n_out;
    tok_ids_fn fn; /* of the current call */
    void *fn_ctx;
};

int tok_encoder_new(struct tok_encoder **out, const struct tokenizer *t, enum tok_special special,
                    bool normalize, struct err *e)
{
    *out = NULL;
    struct tok_encoder *x = mem_calloc(1, sizeof *x);
    if (!x) return err_set(e, ERR_IO, "out of memory (encoder)");
    x->t = t;
    x->special = special;
    x->nfc_on = normalize && t->nfc;
    x->spaces_on = normalize && t->kind != TOK_GPT2;
    x->fresh = t->space_prefix;
    x->match = pcre2_match_data_create(1, NULL);
    x->context = pcre2_match_context_create(NULL);
    x->stack = t->jit ? pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, NULL) : NULL;
    if (tok_bpe_init(&x->bpe, e) || !x->match || !x->context || (t->jit && !x->stack)) {
        tok_encoder_free(x);
        return err_set(e, ERR_IO, "out of memory (encoder)");
    }
    /* The patterns need no backtracking but over white space, which is linear: no limits that long runs could
     * meet. */
    pcre2_set_match_limit(x->context, UINT32_MAX);
    pcre2_set_depth_limit(x->context, UINT32_MAX);
    if (x->stack) pcre2_jit_stack_assign(x->context, NULL, x->stack);
    *out = x;
    return 0;
}

void tok_encoder_free(struct tok_encoder *x)
{
    if (!x) return;
    mem_free(x->raw.p);
    mem_free(x->text.p);
    tok_nfc_free(&x->nfc);
    tok_bpe_free(&x->bpe);
    pcre2_match_data_free(x->match);
    pcre2_match_context_free(x->context);
    pcre2_jit_stack_free(x->stack);
    mem_free(x);
}

static int flush(struct tok_encoder *x, struct err *e)
{
    size_t n = x->n_out;
    x->n_out = 0;
    return n && x->fn(x->fn_ctx, x->out, n, e) < 0 ? -1 : 0;
}

static int emit(struct tok_encoder *x, const int32_t *ids, size_t n, struct err *e)
{
    while (n) {
        size_t k = N_OUT - x->n_out < n ? N_OUT - x->n_out : n;
        memcpy(x->out + x->n_out, ids, k * sizeof *ids);
        x->n_out += k;
        ids += k;
        n -= k;
        if (x->n_out == N_OUT && flush(x, e)) return -1;
    }
    return 0;
}

static int emit_piece(struct tok_encoder *x, const uint8_t *p, size_t n, struct err *e)
{
    const int32_t *ids;
    size_t k;
    if (tok_bpe_piece(&x->bpe, x->t, p, n, &ids, &k, e)) return -1;
    return emit(x, ids, k, e);
}

/* Length of the piece at p [n]; 0 if more text could change it; negative: PCRE2's error. */
static int64_t next_piece(struct tok_encoder *x, const uint8_t *p, size_t n, bool end)
{
    uint32_t how = end ? 0 : PCRE2_PARTIAL_HARD;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (x->t->jit) rc = pcre2_jit_match(x->t->re, p, n, 0, how, x->match, x->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(x->t->re, p, n, 0, how | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, x->match, x->context);
    if (rc == PCRE2_ERROR_PARTIAL) return 0;
    return rc > 0 ? (int64_t)pcre2_get_ovector_pointer(x->match)[1] : rc;
}

/* Pieces of SentencePiece-style text: between characters that no merge brings together (tok_joined). */
static int split_joined(struct tok_encoder *x, bool end, struct err *e)
{
    const uint8_t *p = x->text.p;
    const size_t n = x->text.n;
    size_t head = 0, at = x->seen, len;
    if (!n) return 0;
    uint32_t c = tok_char(p + at, &len);
    while (at + len < n) {
        at += len;
        uint32_t d = tok_char(p + at, &len);
        if (!tok_joined(x->t, c, d)) {
            if (emit_piece(x, p + head, at - head, e)) return -1;
            head = at;
        }
        c = d;
    }
    if (end) {
        if (emit_piece(x, p + head, n - head, e)) return -1;
        head = at = n;
    }
    tok_buf_drop(&x->text, head);
    x->seen = at - head;
    return 0;
}

static int split(struct tok_encoder *x, bool end, struct err *e)
{
    size_t head = 0;
    if (x->t->kind != TOK_GPT2) return split_joined(x, end, e);
    /* After a partial match the text grows by a quarter before the next try, so that a long piece which
     * arrives in small cuts costs linear time. */
    if (!end && x->text.n < x->retry) return 0;
    x->retry = 0;
    while (head < x->text.n) {
        int64_t n = next_piece(x, x->text.p + head, x->text.n - head, end);
        if (n == 0 && !end) {
            size_t left = x->text.n - head;
            x->retry = left + (left > 256 ? left / 4 : 1);
            break;
        }
        if (n <= 0)
            return err_set(e, ERR_FORMAT, "pre-tokenizer %s: PCRE2 error %lld", x->t->pre->name,
                           (long long)n);
        if (emit_piece(x, x->text.p + head, (size_t)n, e)) return -1;
        head += (size_t)n;
    }
    tok_buf_drop(&x->text, head);
    return 0;
}

/* The normalisation of SentencePiece-style text: U+2581 is a space, and a space goes before the first text
 * after a special token. Without it U+2581 is no token and becomes bytes, so that any text comes back as it
 * was. */
static int add_spaces(struct tok_encoder *x, const uint8_t *p, size_t n, struct err *e)
{
    static const uint8_t space[3] = {0xe2, 0x96, 0x81};
    if (n && x->fresh && tok_buf_add(&x->text, " ", 1, e)) return -1;
    if (n) x->fresh = false;
    while (x->spaces_on && n) {
        const uint8_t *q = memmem(p, n, space, 3);
        if (!q) break;
        if (tok_buf_add(&x->text, p, (size_t)(q - p), e) || tok_buf_add(&x->text, " ", 1, e)) return -1;
        n -= (size_t)(q - p) + 3;
        p = q + 3;
    }
    return tok_buf_add(&x->text, p, n, e);
}

/* Valid text of the current segment; end: the segment ends after it. */
static int add_text(struct tok_encoder *x, const uint8_t *p, size_t n, bool end, struct err *e)
{
    if (x->t->kind != TOK_GPT2) return add_spaces(x, p, n, e) || split(x, end, e) ? -1 : 0;
    if (x->nfc_on ? tok_nfc_add(&x->nfc, p, n, end, &x->text, e) : tok_buf_add(&x->text, p, n, e)) return -1;
    return split(x, end, e);
}

/* The longest special token that p [n] begins with, or NULL. *more: p is all of it the beginning of a longer
 * one. The tokens are sorted, so those that share the first k bytes with p are a range, which shrinks as k
 * grows. */
static const struct tok_added *find_added(const struct tok_encoder *x, const uint8_t *p, size_t n, bool *more)
{
    const struct tok_added *a = x->t->added, *found = NULL;
    const unsigned mine = 1u << x->special;
    uint32_t lo = 0, hi = x->t->n_added;
    *more = false;
    for (uint32_t k = 0; lo < hi; k++) {
        if (a[lo].n == k && k) { /* the shortest of the range comes first: here it ends */
            if (a[lo].in & mine) found = &a[lo];
            if (++lo == hi) break;
        }
        if (k == n) {
            for (uint32_t i = lo; i < hi && !*more; i++) *more = a[i].in & mine;
            break;
        }
        uint32_t l = lo, r = hi;
        while (l < r) { /* first with a byte >= p[k] */
            uint32_t m = l + (r - l) / 2;
            if (a[m].s[k] < p[k])
                l = m + 1;
            else
                r = m;
        }
        lo = l;
        for (r = hi; l < r;) { /* first with a byte > p[k] */
            uint32_t m = l + (r - l) / 2;
            if (a[m].s[k] <= p[k])
                l = m + 1;
            else
                r = m;
        }
        hi = l;
    }
    return found;
}

/* Scan raw bytes; *used: how many need not be seen again. end: no token and no character goes on behind them;
 * close: nor does the text. */
static int scan(struct tok_encoder *x, const uint8_t *p, size_t n, bool end, bool close, size_t *used,
                struct err *e)
{
    const bool *first = x->t->first[x->special];
    size_t i = 0, run = 0;
    while (i < n) {
        if (first[p[i]]) {
            bool more;
            const struct tok_added *a = find_added(x, p + i, n - i, &more);
            if (more && !end) break;
            if (a) {
                if (add_text(x, p + run, i - run, true, e) || emit(x, &a->id, 1, e)) return -1;
                x->fresh = x->t->space_prefix;
                run = i += a->n;
                continue;
            }
        }
        int len = p[i] < 0x80 ? 1 : tok_utf8(p + i, n - i);
        if (len == 0) {
            if (!end) break;
            len = -(int)(n - i);
        }
        if (len > 0) {
            i += (size_t)len;
            continue;
        }
        if (add_text(x, p + run, i - run, true, e) || emit_piece(x, p + i, (size_t)-len, e)) return -1;
        x->fresh = false;
        run = i += (size_t)-len;
    }
    *used = i;
    return add_text(x, p + run, i - run, close, e);
}

int tok_encode(struct tok_encoder *x, const void *bytes, size_t n, bool end, tok_ids_fn out, void *ctx,
               struct err *e)
{
    const uint8_t *p = bytes ? bytes : (const void *)"";
    if (x->failed) return err_set(e, ERR_IO, "the encoder has failed before");
    x->fn = out;
    x->fn_ctx = ctx;
    x->failed = true;
    do {
        size_t k = n < STEP ? n : STEP, used;
        bool last = end && k == n;
        if (x->raw.n) {
            if (tok_buf_add(&x->raw, p, k, e) || scan(x, x->raw.p, x->raw.n, last, last, &used, e)) return -1;
            tok_buf_drop(&x->raw, used);
        } else if (k || last) {
            if (scan(x, p, k, last, last, &used, e) || tok_buf_add(&x->raw, p + used, k - used, e)) return -1;
        }
        p += k;
        n -= k;
    } while (n);
    if (end) x->fresh = x->t->space_prefix;
    if (flush(x, e)) return -1;
    x->failed = false;
    return 0;
}

int tok_encoder_special(struct tok_encoder *x, enum tok_special special, tok_ids_fn out, void *ctx,
                        struct err *e)
{
    size_t used;
    if (x->failed) return err_set(e, ERR_IO, "the encoder has failed before");
    x->fn = out;
    x->fn_ctx = ctx;
    x->failed = true;
    if (x->raw.n && (scan(x, x->raw.p, x->raw.n, true, false, &used, e) || flush(x, e))) return -1;
    x->raw.n = 0;
    x->special = special;
    x->failed = false;
    return 0;
}
