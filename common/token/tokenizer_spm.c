/* tokenizer_spm.c - the tables of SentencePiece-style vocabularies: characters that merge by rank (Gemma 4,
 * and tokenizer.json with byte_fallback) or by the score of the token they make (Kudo and Richardson 2018).
 *
 * The files write a space as U+2581. Here it is a space in every table, so that a token's bytes are what it
 * decodes to; the encoder turns U+2581 into a space for the same reason (it cannot be told from one, there as
 * here).
 *
 * Both ways end in the same table of (left, right) -> (rank, id). By score, every cut of a token into two
 * tokens is such a merge, and its rank is the place of its score among all scores, so that equal scores are
 * one rank and the leftmost pair goes first, as it should. */
#include <stdlib.h>
#include <string.h>
#include "tokenizer_priv.h"

#define SPACE "\xe2\x96\x81" /* U+2581 */
#define MAX_SCORED 1024      /* bytes: cutting is quadratic, and trained tokens are short */

size_t tok_spm_spaces(const char *s, size_t n, uint8_t *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(s + i, SPACE, 3) == 0) {
            out[k++] = ' ';
            i += 3;
        } else {
            out[k++] = (uint8_t)s[i++];
        }
    }
    return k;
}

static bool is_text(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = tok_utf8(p + i, n - i);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte that "<0xXX>" stands for, or -1. */
static int byte_of(struct gguf_str s)
{
    if (s.n != 6 || memcmp(s.s, "<0x", 3) || s.s[5] != '>') return -1;
    int hi = hex(s.s[3]), lo = hex(s.s[4]);
    return hi < 0 || lo < 0 ? -1 : hi << 4 | lo;
}

/* Each token's bytes. A normal token with a space in its text is out of reach: text has none where the
 * reference looks for tokens, only U+2581. */
int tok_spm_bytes(struct tokenizer *t, const struct tok_spec *s, bool *spelled, struct err *e)
{
    uint64_t at = 0;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        const struct gguf_str text = s->token[i];
        const int32_t type = s->type[i];
        t->offset[i] = at;
        if (type == TOK_BYTE) {
            int b = byte_of(text);
            if (b < 0)
                return err_set(
                    e, ERR_FORMAT,
                    "%s: tokenizer.ggml.tokens: byte token %lld is '%.*s' (expected '<0x00>' to '<0xFF>')",
                    s->name, (long long)i, tok_shown(text), text.s);
            t->bytes[at++] = (uint8_t)b;
            continue;
        }
        bool as_text = type == TOK_NORMAL || type == TOK_USER_DEFINED;
        size_t n = text.n;
        if (as_text)
            n = tok_spm_spaces(text.s, text.n, t->bytes + at);
        else if (n)
            memcpy(t->bytes + at, text.s, n);
        spelled[i] = is_text(t->bytes + at, n) &&
                     (type == TOK_NORMAL ? !text.n || !memchr(text.s, ' ', text.n) : as_text || n == text.n);
        at += n;
    }
    t->offset[s->n_vocab] = at;
    return 0;
}

int tok_spm_byte_ids(struct tokenizer *t, const struct tok_spec *s, struct err *e)
{
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (t->type[i] != TOK_BYTE) continue;
        int32_t *id = &t->byte_id[t->bytes[t->offset[i]]];
        if (*id >= 0)
            return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.tokens: '%.*s' is both token %d and token %d",
                           s->name, tok_shown(s->token[i]), s->token[i].s, *id, i);
        *id = i;
    }
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0)
            return err_set(
                e, ERR_FORMAT,
                "%s: tokenizer.ggml.tokens: no byte token '<0x%02X>' (expected all 256, of type %d)", s->name,
                (unsigned)b, TOK_BYTE);
    for (int c = 0; c < 128; c++) {
        uint8_t b = (uint8_t)c;
        t->ascii_id[c] = tok_find_piece(t, &b, 1);
    }
    return 0;
}

static void join(struct tokenizer *t, uint32_t left, uint32_t right)
{
    const uint8_t *l = t->bytes + t->offset[left + 1], *r = t->bytes + t->offset[right];
    size_t len;
    do l--;
    while ((*l & 0xc0) == 0x80);
    uint64_t a = tok_char(l, &len), b = tok_char(r, &len);
    uint64_t h = (a << 32 | b) * 0x9e3779b97f4a7c15u >> (64 - TOK_JOINED_BITS);
    t->joined[h >> 6] |= (uint64_t)1 << (h & 63);
}

/* ---- merges by rank ---- */

static int32_t part_id(const struct tokenizer *t, const char *p, size_t n, uint8_t *work)
{
    return n ? tok_find_piece(t, work, tok_spm_spaces(p, n, work)) : -1;
}

static int add_merge(struct tokenizer *t, const struct tok_spec *s, uint64_t rank, uint8_t *work,
                     struct err *e)
{
    const struct gguf_str m = s->merge[rank];
    const char *gap = m.n > 1 ? memchr(m.s + 1, ' ', m.n - 1) : NULL;
    size_t nl = gap ? (size_t)(gap - m.s) : 0, nr = gap ? m.n - nl - 1 : 0;
    if (!nl || !nr || memchr(gap + 1, ' ', nr))
        return err_set(e, ERR_FORMAT, "%s: %s: merge %llu '%.*s' (expected two tokens and one space)",
                       s->name, s->merge_key, (unsigned long long)rank, tok_shown(m), m.s);
    int32_t left = part_id(t, m.s, nl, work), right = part_id(t, gap + 1, nr, work);
    if (left < 0 || right < 0)
        return err_set(e, ERR_FORMAT, "%s: %s: merge %llu '%.*s': no token '%.*s'", s->name, s->merge_key,
                       (unsigned long long)rank, tok_shown(m), m.s, left < 0 ? (int)nl : (int)nr,
                       left < 0 ? m.s : gap + 1);
    size_t n = tok_spm_spaces(m.s, nl, work);
    n += tok_spm_spaces(gap + 1, nr, work + n);
    int32_t id = tok_find_piece(t, work, n);
    if (id < 0)
        return err_set(e, ERR_FORMAT, "%s: %s: merge %llu '%.*s': no token for the result", s->name,
                       s->merge_key, (unsigned long long)rank, tok_shown(m), m.s);
    if (tok_find_merge(t, (uint32_t)left, (uint32_t)right))
        return err_set(e, ERR_FORMAT, "%s: %s: merge %llu '%.*s' repeats an earlier one", s->name,
                       s->merge_key, (unsigned long long)rank, tok_shown(m), m.s);
    tok_merge_put(t, (struct tok_merge){(uint32_t)left, (uint32_t)right, (uint32_t)rank, (uint32_t)id});
    join(t, (uint32_t)left, (uint32_t)right);
    return 0;
}

/* ---- merges by score ---- */

struct scored {
    float score;
    uint32_t id, rank;
};

static int by_score_desc(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The tokens that merging can make, and for each the rank of its score. */
static int rank_scores(const struct tokenizer *t, const struct tok_spec *s, const bool *spelled,
                       struct scored *v, uint32_t *n, struct err *e)
{
    *n = 0;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (s->score[i] != s->score[i])
            return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.scores: the score of token %d is not a number",
                           s->name, i);
        if (t->type[i] == TOK_NORMAL && spelled[i]) v[(*n)++] = (struct scored){s->score[i], (uint32_t)i, 0};
    }
    qsort(v, *n, sizeof *v, by_score_desc);
    for (uint32_t i = 1; i < *n; i++) v[i].rank = v[i - 1].rank + (v[i].score != v[i - 1].score);
    return 0;
}

/* A character that is no token turns into bytes before anything merges, where the reference would first look
 * for a longer token that holds it. No trained vocabulary has such a token; one that has is refused. */
static int char_missing(const struct tok_spec *s, uint32_t id, struct err *e)
{
    return err_set(e, ERR_FORMAT,
                   "%s: tokenizer.ggml.tokens: token %u '%.*s' holds a character that is no token of its own "
                   "(not supported by score)",
                   s->name, id, tok_shown(s->token[id]), s->token[id].s);
}

/* The cuts of one token: counted (put false) or made merges. */
static int cut(struct tokenizer *t, const struct tok_spec *s, struct scored v, bool put, uint64_t *count,
               struct err *e)
{
    const uint8_t *p = t->bytes + t->offset[v.id];
    const size_t n = t->offset[v.id + 1] - t->offset[v.id];
    if (n > MAX_SCORED)
        return err_set(e, ERR_FORMAT,
                       "%s: tokenizer.ggml.tokens: token %u is %zu bytes long (expected at most %d by score)",
                       s->name, v.id, n, MAX_SCORED);
    size_t len;
    for (size_t i = 0; i < n; i += len) {
        tok_char(p + i, &len);
        if (i == 0) continue;
        size_t first, last;
        tok_char(p, &first);
        tok_char(p + i, &last);
        int32_t left = tok_find_piece(t, p, i), right = tok_find_piece(t, p + i, n - i);
        bool l = left >= 0, r = right >= 0;
        if ((l || i == first) && (r || i + last == n) && !(l && r)) return char_missing(s, v.id, e);
        if (!l || !r) continue;
        ++*count;
        if (!put) continue;
        tok_merge_put(t, (struct tok_merge){(uint32_t)left, (uint32_t)right, v.rank, v.id});
        join(t, (uint32_t)left, (uint32_t)right);
    }
    return 0;
}

static int by_score(struct tokenizer *t, const struct tok_spec *s, const bool *spelled, struct err *e)
{
    struct scored *v = mem_alloc((size_t)t->n_vocab * sizeof *v);
    uint32_t n;
    uint64_t count = 0;
    if (!v) return tok_no_memory(e, "scores");
    int rc = rank_scores(t, s, spelled, v, &n, e);
    for (uint32_t i = 0; i < n && rc == 0; i++) rc = cut(t, s, v[i], false, &count, e);
    if (rc == 0) rc = tok_merge_table(t, count, e);
    count = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) rc = cut(t, s, v[i], true, &count, e);
    mem_free(v);
    return rc;
}

int tok_spm_merges(struct tokenizer *t, const struct tok_spec *s, const bool *spelled, struct err *e)
{
    t->joined = arena_alloc(t->arena, (size_t)1 << (TOK_JOINED_BITS - 6), sizeof *t->joined);
    if (!t->joined) return tok_no_memory(e, "merges");
    return s->score ? by_score(t, s, spelled, e) : tok_merges_each(t, s, add_merge, e);
}
