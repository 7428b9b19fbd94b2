/* tokenizer.c - the vocabulary: checked, and made into the tables that encoding and decoding use. */
#include <stdlib.h>
#include <string.h>
#include "tokenizer_priv.h"

/* White space is Unicode's White_Space written out: PCRE2's own \s in UCP mode would add U+180E, Oniguruma's
 * (which tokenizer.json means) does not. W is for the inside of a class. */
#define W "\\p{Z}\\x{9}-\\x{d}\\x{85}"
#define SPACES "[" W "]*[\\r\\n]+|[" W "]+(?![^" W "])|[" W "]+"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"

static const struct tok_pre pres[] = {
    {"gpt-2", NULL,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" W "\\p{L}\\p{N}]+|[" W "]+(?![^" W "])|[" W "]+",
     false, false, false},
    {"qwen2",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+"
     "(?!\\S)|\\s+",
     CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" W "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, false,
     true, false},
    {"qwen35",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
     "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" W
                  "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
     false, true, false},
    {"llama-bpe",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" W "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, true,
     false, true},
};
#define N_PRES (sizeof pres / sizeof *pres)

const struct tok_pre *tok_pre_by_name(struct gguf_str name)
{
    for (size_t i = 0; i < N_PRES; i++)
        if (strlen(pres[i].name) == name.n && memcmp(pres[i].name, name.s, name.n) == 0) return &pres[i];
    return NULL;
}

const struct tok_pre *tok_pre_by_regex(const char *hf)
{
    if (!hf) return &pres[0];
    for (size_t i = 0; i < N_PRES; i++)
        if (pres[i].hf && strcmp(pres[i].hf, hf) == 0) return &pres[i];
    return NULL;
}

int tok_utf8(const uint8_t *p, size_t n)
{
    uint8_t c = p[0], lo = 0x80, hi = 0xbf;
    int len;
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return -1;
    if (c < 0xe0) {
        len = 2;
    } else if (c < 0xf0) {
        len = 3;
        if (c == 0xe0) lo = 0xa0; /* overlong */
        if (c == 0xed) hi = 0x9f; /* surrogates */
    } else {
        len = 4;
        if (c == 0xf0) lo = 0x90;
        if (c == 0xf4) hi = 0x8f; /* above U+10FFFF */
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) return 0;
        if (p[i] < lo || p[i] > hi) return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

/* The alphabet: the bytes 0x21..0x7e, 0xa1..0xac and 0xae..0xff are the characters of the same number, the 68
 * others, in order, U+0100 and up. */
int64_t tok_from_alphabet(const char *s, uint64_t n, uint8_t *out)
{
    static const uint8_t gap[68] = {0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,
                                    14,  15,  16,  17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,
                                    28,  29,  30,  31,  32,  127, 128, 129, 130, 131, 132, 133, 134, 135,
                                    136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147, 148, 149,
                                    150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 173};
    const uint8_t *p = (const uint8_t *)s;
    int64_t k = 0;
    for (uint64_t i = 0; i < n;) {
        uint32_t c = p[i];
        if (c >= 0x80) {
            if (c > 0xc5 || tok_utf8(p + i, n - i) != 2) return -1;
            c = (c & 0x1f) << 6 | (p[i + 1] & 0x3f);
            i++;
        }
        i++;
        if (c >= 0x100 && c < 0x100 + 68)
            out[k++] = gap[c - 0x100];
        else if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xff && c != 0xad))
            out[k++] = (uint8_t)c;
        else
            return -1;
    }
    return k;
}

int tok_buf_add(struct tok_buf *b, const void *p, size_t n, struct err *e)
{
    if (!n) return 0;
    if (n > b->cap - b->n) {
        if (n > SIZE_MAX / 4 - b->n)
            return err_set(e, ERR_IO, "out of memory (text of more than 2^62 bytes)");
        size_t cap = (b->n + n) + (b->n + n) / 2 + 256;
        uint8_t *q = mem_realloc(b->p, cap);
        if (!q) return err_set(e, ERR_IO, "out of memory (%zu bytes of text)", cap);
        b->p = q;
        b->cap = cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return 0;
}

void tok_buf_drop(struct tok_buf *b, size_t n)
{
    if (n && n < b->n) memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

int tok_no_memory(struct err *e, const char *what)
{
    return err_set(e, ERR_IO, "out of memory (%s of the vocabulary)", what);
}

static uint64_t table_size(uint64_t n)
{
    uint64_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

int32_t tok_find_piece(const struct tokenizer *t, const uint8_t *p, size_t n)
{
    for (uint64_t i = tok_hash(p, n) & t->piece_mask;; i = (i + 1) & t->piece_mask) {
        if (!t->piece[i]) return -1;
        uint32_t id = t->piece[i] - 1;
        uint64_t o = t->offset[id];
        if (t->offset[id + 1] - o == n && memcmp(t->bytes + o, p, n) == 0) return (int32_t)id;
    }
}

int tok_shown(struct gguf_str s)
{
    return s.n > 60 ? 60 : (int)s.n;
}

/* Each token's bytes; a normal token is spelled in the alphabet, the others are their own text. A normal
 * token outside the alphabet also stands for its own text (as in tokenizer.json's decoder): encoding never
 * makes it. */
static int build_bytes(struct tokenizer *t, const struct tok_spec *s, bool *spelled, struct err *e)
{
    (void)e;
    uint64_t at = 0;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        t->offset[i] = at;
        int64_t n = tok_from_alphabet(s->token[i].s, s->token[i].n, t->bytes + at);
        /* The bytes of a token that is found by its text are that text, but merges name it in the alphabet
         * like any other: for such a token both are the same, or it takes no part in merges. */
        bool own = s->type[i] != TOK_NORMAL || n < 0;
        spelled[i] = n >= 0 &&
                     (!own || ((uint64_t)n == s->token[i].n && memcmp(t->bytes + at, s->token[i].s, n) == 0));
        if (own) {
            memcpy(t->bytes + at, s->token[i].s, s->token[i].n);
            n = (int64_t)s->token[i].n;
        }
        at += (uint64_t)n;
    }
    t->offset[s->n_vocab] = at;
    return 0;
}

/* Types, and room for the texts: no token stands for more bytes than its text has. */
static int build_types(struct tokenizer *t, const struct tok_spec *s, struct err *e)
{
    const int32_t last = s->kind == TOK_GPT2 ? TOK_UNUSED : TOK_BYTE;
    uint64_t total = 0;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        if (s->token[i].n > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: token %lld is %llu bytes long", s->name, (long long)i,
                           (unsigned long long)s->token[i].n);
        total += s->token[i].n;
    }
    t->type = arena_alloc(t->arena, (size_t)s->n_vocab, 1);
    t->offset = arena_alloc(t->arena, (size_t)s->n_vocab + 1, sizeof *t->offset);
    t->bytes = arena_alloc(t->arena, total + 1, 1);
    if (!t->type || !t->offset || !t->bytes) return tok_no_memory(e, "texts");
    for (int64_t i = 0; i < s->n_vocab; i++) {
        if (s->type[i] < TOK_NORMAL || s->type[i] > last)
            return err_set(e, ERR_FORMAT,
                           "%s: tokenizer.ggml.token_type: token %lld '%.*s' has type %d (expected 1 to %d)",
                           s->name, (long long)i, tok_shown(s->token[i]), s->token[i].s, s->type[i], last);
        t->type[i] = (uint8_t)s->type[i];
    }
    return 0;
}

/* Bytes to token. Normal tokens come first: two of the same bytes would leave open which one is meant; a
 * special token that a normal one repeats is only found by its text. */
static int build_pieces(struct tokenizer *t, const struct tok_spec *s, const bool *spelled, struct err *e)
{
    uint64_t size = table_size((uint64_t)s->n_vocab);
    t->piece_mask = size - 1;
    t->piece = arena_alloc(t->arena, size, sizeof *t->piece);
    if (!t->piece) return tok_no_memory(e, "index");
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t id = 0; id < s->n_vocab; id++) {
            const uint8_t *p = t->bytes + t->offset[id];
            size_t n = t->offset[id + 1] - t->offset[id];
            if (!spelled[id] || n == 0 || t->type[id] == TOK_UNUSED ||
                (t->type[id] == TOK_NORMAL) != (pass == 0))
                continue;
            int32_t other = tok_find_piece(t, p, n);
            if (other >= 0 && pass == 0)
                return err_set(e, ERR_FORMAT,
                               "%s: tokenizer.ggml.tokens: '%.*s' is both token %d and token %lld", s->name,
                               tok_shown(s->token[id]), s->token[id].s, other, (long long)id);
            if (other >= 0) continue;
            uint64_t i = tok_hash(p, n) & t->piece_mask;
            while (t->piece[i]) i = (i + 1) & t->piece_mask;
            t->piece[i] = (uint32_t)id + 1;
        }
    }
    if (s->kind != TOK_GPT2) return tok_spm_byte_ids(t, s, e);
    for (int b = 0; b < 256; b++) {
        uint8_t c = (uint8_t)b;
        t->byte_id[b] = tok_find_piece(t, &c, 1);
        if (t->byte_id[b] < 0)
            return err_set(e, ERR_FORMAT,
                           "%s: tokenizer.ggml.tokens: no token for the byte 0x%02x (expected all 256)",
                           s->name, (unsigned)b);
    }
    return 0;
}

static int merge_part(struct tokenizer *t, const struct tok_spec *s, uint64_t rank, struct gguf_str part,
                      uint8_t *work, uint32_t *id, struct err *e)
{
    int64_t n = tok_from_alphabet(part.s, part.n, work);
    int32_t k = n > 0 ? tok_find_piece(t, work, (size_t)n) : -1;
    if (k < 0)
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.merges: merge %llu '%.*s': no token '%.*s'",
                       s->name, (unsigned long long)rank, tok_shown(s->merge[rank]), s->merge[rank].s,
                       tok_shown(part), part.s);
    *id = (uint32_t)k;
    return 0;
}

static int build_merge(struct tokenizer *t, const struct tok_spec *s, uint64_t rank, uint8_t *work,
                       struct err *e)
{
    struct gguf_str m = s->merge[rank];
    const char *gap = m.n ? memchr(m.s, ' ', m.n) : NULL;
    uint64_t n = gap ? (uint64_t)(gap - m.s) : 0;
    struct gguf_str left = {m.s, n}, right = {m.s + n + 1, gap ? m.n - n - 1 : 0};
    if (!left.n || !right.n || memchr(right.s, ' ', right.n))
        return err_set(e, ERR_FORMAT,
                       "%s: tokenizer.ggml.merges: merge %llu '%.*s' (expected two tokens and one space)",
                       s->name, (unsigned long long)rank, tok_shown(m), m.s);
    struct tok_merge r = {.rank = (uint32_t)rank};
    if (merge_part(t, s, rank, left, work, &r.left, e) || merge_part(t, s, rank, right, work, &r.right, e))
        return -1;
    int64_t nl = tok_from_alphabet(left.s, left.n, work), nr = tok_from_alphabet(right.s, right.n, work + nl);
    int32_t id = tok_find_piece(t, work, (size_t)(nl + nr));
    if (id < 0)
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.merges: merge %llu '%.*s': no token for the result",
                       s->name, (unsigned long long)rank, tok_shown(m), m.s);
    r.id = (uint32_t)id;
    if (tok_find_merge(t, r.left, r.right))
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.merges: merge %llu '%.*s' repeats an earlier one",
                       s->name, (unsigned long long)rank, tok_shown(m), m.s);
    tok_merge_put(t, r);
    return 0;
}

void tok_merge_put(struct tokenizer *t, struct tok_merge m)
{
    uint64_t h = (((uint64_t)m.left << 32) | m.right) * 0x9e3779b97f4a7c15u;
    uint64_t i = (h >> 29) & t->merge_mask;
    while (t->merge[i].rank != TOK_NO_RANK) i = (i + 1) & t->merge_mask;
    t->merge[i] = m;
}

int tok_merge_table(struct tokenizer *t, uint64_t n, struct err *e)
{
    uint64_t size = table_size(n);
    t->merge_mask = size - 1;
    t->merge = arena_alloc(t->arena, size, sizeof *t->merge);
    if (!t->merge) return tok_no_memory(e, "merges");
    for (uint64_t i = 0; i < size; i++) t->merge[i].rank = TOK_NO_RANK;
    return 0;
}

int tok_merges_each(struct tokenizer *t, const struct tok_spec *s, tok_merge_fn *add, struct err *e)
{
    uint64_t longest = 0;
    for (uint64_t i = 0; i < s->n_merges; i++)
        if (s->merge[i].n > longest) longest = s->merge[i].n;
    if (tok_merge_table(t, s->n_merges, e)) return -1;
    uint8_t *work = mem_alloc(longest + 1);
    if (!work) return tok_no_memory(e, "merges");
    int rc = 0;
    for (uint64_t i = 0; i < s->n_merges && rc == 0; i++) rc = add(t, s, i, work, e);
    mem_free(work);
    return rc;
}

static int by_bytes(const void *a, const void *b)
{
    const struct tok_added *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* A user-defined token that looks like a control token: files differ in which of a chat's markers they
 * declare control tokens. */
static bool is_marker(struct gguf_str s)
{
    return s.n >= 3 && (memcmp(s.s, "<|", 2) == 0 || memcmp(s.s + s.n - 2, "|>", 2) == 0);
}

static bool is_added(const struct tok_spec *s, int64_t id)
{
    int32_t type = s->type[id];
    return s->token[id].n && (type == TOK_CONTROL || type == TOK_UNKNOWN || type == TOK_USER_DEFINED);
}

/* At each byte of a text the longest special token is looked for, in time of its length: text that nearly
 * holds long ones over and over would take seconds a kilobyte. Published ones have up to some fifty bytes. */
#define MAX_ADDED 1024

static int build_added(struct tokenizer *t, const struct tok_spec *s, struct err *e)
{
    uint64_t bytes = 0;
    for (int64_t id = 0; id < s->n_vocab; id++)
        if (is_added(s, id)) {
            if (s->token[id].n > MAX_ADDED)
                return err_set(
                    e, ERR_FORMAT,
                    "%s: tokenizer.ggml.tokens: special token %lld has %llu bytes (expected at most %d)",
                    s->name, (long long)id, (unsigned long long)s->token[id].n, MAX_ADDED);
            t->n_added++;
            bytes += s->token[id].n;
        }
    t->added = arena_alloc(t->arena, t->n_added + 1, sizeof *t->added);
    uint8_t *text = arena_alloc(t->arena, bytes + 1, 1); /* as written: what they decode to may differ */
    if (!t->added || !text) return tok_no_memory(e, "special tokens");
    uint32_t k = 0;
    for (int64_t id = 0; id < s->n_vocab; id++) {
        if (!is_added(s, id)) continue;
        uint32_t n = (uint32_t)s->token[id].n;
        memcpy(text, s->token[id].s, n);
        for (uint32_t i = 0; i < n;) {
            int len = tok_utf8(text + i, n - i);
            if (len <= 0)
                return err_set(e, ERR_FORMAT,
                               "%s: tokenizer.ggml.tokens: special token %lld is not valid UTF-8", s->name,
                               (long long)id);
            i += (uint32_t)len;
        }
        unsigned in = 1u << TOK_SPECIAL_ALL;
        if (s->type[id] == TOK_USER_DEFINED) {
            in |= 1u << TOK_SPECIAL_NOT;
            if (!is_marker(s->token[id])) in |= 1u << TOK_SPECIAL_CHAT;
        }
        t->added[k++] = (struct tok_added){text, n, (int32_t)id, (uint8_t)in};
        for (int how = 0; how < 3; how++)
            if (in >> how & 1) t->first[how][text[0]] = true;
        text += n;
    }
    qsort(t->added, k, sizeof *t->added, by_bytes);
    for (uint32_t i = 1; i < k; i++)
        if (by_bytes(&t->added[i - 1], &t->added[i]) == 0)
            return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.tokens: '%.*s' is both special token %d and %d",
                           s->name, (int)(t->added[i].n > 60 ? 60 : t->added[i].n),
                           (const char *)t->added[i].s, t->added[i - 1].id, t->added[i].id);
    return 0;
}

static int build_regex(struct tokenizer *t, struct err *e)
{
    int code;
    PCRE2_SIZE at;
    t->re = pcre2_compile((PCRE2_SPTR)t->pre->pattern, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &code,
                          &at, NULL);
    if (!t->re) {
        PCRE2_UCHAR msg[128];
        pcre2_get_error_message(code, msg, sizeof msg);
        return err_set(e, ERR_IO, "pre-tokenizer %s: PCRE2: %s at %zu", t->pre->name, (const char *)msg,
                       (size_t)at);
    }
    /* Where there is no JIT the interpreter gives the same pieces, slower. */
    t->jit = pcre2_jit_compile(t->re, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    return 0;
}

int tok_build(struct tokenizer **out, const struct tok_spec *s, struct err *e)
{
    *out = NULL;
    if (s->n_vocab < 1 || s->n_vocab > INT32_MAX - 1)
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.tokens: %lld tokens (expected 1 to %d)", s->name,
                       (long long)s->n_vocab, INT32_MAX - 1);
    if (s->bos < -1 || s->bos >= s->n_vocab)
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.bos_token_id: %d (expected 0 to %lld)", s->name,
                       s->bos, (long long)s->n_vocab - 1);
    if (s->add_bos && s->bos < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: tokenizer.ggml.add_bos_token is set, but tokenizer.ggml.bos_token_id is missing",
                       s->name);
    if (s->n_merges >= TOK_NO_RANK)
        return err_set(e, ERR_FORMAT, "%s: %s: %llu merges (expected below %llu)", s->name, s->merge_key,
                       (unsigned long long)s->n_merges, (unsigned long long)TOK_NO_RANK);
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    bool *spelled = mem_calloc((size_t)s->n_vocab, sizeof *spelled);
    int rc = -1;
    if (!t || !spelled || !(t->arena = arena_new())) {
        tok_no_memory(e, "tables");
        goto done;
    }
    t->kind = s->kind;
    t->pre = s->pre;
    t->nfc = s->nfc;
    t->ignore_merges = s->ignore_merges;
    t->add_bos = s->add_bos;
    t->space_prefix = s->space_prefix;
    t->bos = s->bos;
    t->n_vocab = (int32_t)s->n_vocab;
    const bool spm = s->kind != TOK_GPT2;
    rc = build_types(t, s, e) || (spm ? tok_spm_bytes : build_bytes)(t, s, spelled, e) ||
                 build_pieces(t, s, spelled, e) ||
                 (spm ? tok_spm_merges(t, s, spelled, e) : tok_merges_each(t, s, build_merge, e)) ||
                 build_added(t, s, e) || (s->pre && build_regex(t, e))
             ? -1
             : 0;
done:
    mem_free(spelled);
    if (rc) {
        tok_close(t);
        return -1;
    }
    *out = t;
    return 0;
}

void tok_close(struct tokenizer *t)
{
    if (!t) return;
    pcre2_code_free(t->re);
    arena_free(t->arena);
    mem_free(t);
}

int32_t tok_n_vocab(const struct tokenizer *t)
{
    return t->n_vocab;
}

int32_t tok_bos(const struct tokenizer *t)
{
    return t->bos;
}

bool tok_add_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

int tok_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab &&
           (t->type[id] == TOK_CONTROL || t->type[id] == TOK_USER_DEFINED || t->type[id] == TOK_UNKNOWN);
}

int32_t tok_special_id(const struct tokenizer *t, const char *text)
{
    const size_t n = strlen(text);
    for (uint32_t i = 0; i < t->n_added; i++)
        if (t->added[i].n == n && memcmp(t->added[i].s, text, n) == 0) return t->added[i].id;
    return -1;
}
