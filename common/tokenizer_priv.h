/* tokenizer_priv.h - the inside of the tokenizer, shared by common/tokenizer*.c and its tests.
 *
 * A vocabulary, wherever it was read (a GGUF or a tokenizer.json), is described by a struct tok_spec;
 * tok_build checks it and makes the tables. Pieces of text are looked up by their *bytes*: the printable
 * alphabet in which byte-level BPE spells them in files (docs/tokenizer.md) is undone once, when the tables
 * are made. */
#ifndef DFLASH_TOKENIZER_PRIV_H
#define DFLASH_TOKENIZER_PRIV_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "mem.h"
#include "tokenizer.h"

enum tok_type { /* tokenizer.ggml.token_type */
                TOK_NORMAL = 1,
                TOK_UNKNOWN = 2,
                TOK_CONTROL = 3,
                TOK_USER_DEFINED = 4,
                TOK_UNUSED = 5,
};

/* How text is split before merging: one row for each value of tokenizer.ggml.pre that we know. */
struct tok_pre {
    const char *name; /* tokenizer.ggml.pre */
    const char *hf;   /* the regular expression as tokenizer.json spells it; NULL: ByteLevel with use_regex */
    const char *pattern; /* the same for PCRE2 */
    bool ignore_merges;  /* a piece that is a token as a whole becomes it, merges or not */
    bool nfc;            /* where tokenizer.ggml.normalizer is absent */
    bool add_bos;        /* where tokenizer.ggml.add_bos_token is absent: what that means to the ecosystem */
};
const struct tok_pre *tok_pre_by_name(struct gguf_str name); /* NULL: not known */
const struct tok_pre *tok_pre_by_regex(const char *hf); /* NULL argument: gpt-2; NULL result: not known */

/* A vocabulary as its file has it. Everything is borrowed for the duration of tok_build. */
struct tok_spec {
    const char *name; /* of the file, for messages */
    const struct tok_pre *pre;
    bool nfc, ignore_merges, add_bos;
    int32_t bos;                  /* -1: none */
    const struct gguf_str *token; /* [n_vocab] */
    const int32_t *type;          /* [n_vocab] enum tok_type */
    int64_t n_vocab;
    const struct gguf_str *merge; /* [n_merges] "left right", the earlier the stronger */
    uint64_t n_merges;
};
int tok_build(struct tokenizer **t, const struct tok_spec *s, struct err *e);

struct tok_merge { /* an empty slot has rank TOK_NO_RANK */
    uint32_t left, right, rank, id;
};
#define TOK_NO_RANK UINT32_MAX

struct tok_rule {
    uint32_t left, right, id;
};

struct tok_added { /* a token that is found by its text, before anything else looks at it */
    const uint8_t *s;
    uint32_t n;
    int32_t id;
    bool control; /* only with `special` */
};

struct tokenizer {
    const struct tok_pre *pre;
    bool nfc, ignore_merges, add_bos;
    int32_t n_vocab, bos;
    uint8_t *type;    /* [n_vocab] */
    uint64_t *offset; /* [n_vocab + 1] into bytes */
    uint8_t *bytes;   /* what each token stands for, one after the other */
    uint32_t *piece;  /* [piece_mask + 1] hash of byte strings: id + 1, or 0 */
    uint64_t piece_mask;
    int32_t byte_id[256];    /* the token of each single byte */
    struct tok_merge *merge; /* [merge_mask + 1] hash of (left, right) */
    uint64_t merge_mask;
    struct tok_rule *rule;   /* [n_merges] by rank */
    struct tok_added *added; /* [n_added] sorted by bytes */
    uint32_t n_added;
    bool first[2][256]; /* [special]: a byte with which a token to be found by its text begins */
    pcre2_code *re;
    bool jit;
    struct arena *arena;
};

static inline uint64_t tok_hash(const uint8_t *p, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ (n * 0xff51afd7ed558ccdu);
    while (n >= 8) {
        uint64_t v;
        __builtin_memcpy(&v, p, 8);
        h = (h ^ v) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
        p += 8;
        n -= 8;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    h = (h ^ v) * 0x94d049bb133111ebu;
    return h ^ (h >> 32);
}

static inline const struct tok_merge *tok_find_merge(const struct tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t h = (((uint64_t)left << 32) | right) * 0x9e3779b97f4a7c15u;
    for (uint64_t i = (h >> 29) & t->merge_mask;; i = (i + 1) & t->merge_mask) {
        const struct tok_merge *m = &t->merge[i];
        if (m->rank == TOK_NO_RANK) return NULL;
        if (m->left == left && m->right == right) return m;
    }
}

/* The token that stands for exactly these bytes, or -1. */
int32_t tok_find_piece(const struct tokenizer *t, const uint8_t *p, size_t n);
/* Undo the printable alphabet: text [n] to out [at most n]. Returns the bytes written, or -1 where a
 * character is not of the alphabet. */
int64_t tok_from_alphabet(const char *s, uint64_t n, uint8_t *out);

/* The UTF-8 sequence at p, n > 0 bytes: its length; 0 if the n bytes are the beginning of one; -k if its
 * first k bytes are ill-formed (a maximal subpart in the terms of the Unicode standard, chapter 3.9). */
int tok_utf8(const uint8_t *p, size_t n);

/* A growing array of bytes. */
struct tok_buf {
    uint8_t *p;
    size_t n, cap;
};
int tok_buf_add(struct tok_buf *b, const void *p, size_t n, struct err *e);
void tok_buf_drop(struct tok_buf *b, size_t n); /* the first n bytes */

/* Streaming NFC. A character that never combines with what stands before it is a boundary; a boundary and
 * what follows up to the next is normalised as one. Held back: the last such cluster. */
struct tok_nfc {
    struct tok_buf held;
    int32_t *cp; /* [cap] work space */
    size_t cap;
};
/* p [n]: whole, valid UTF-8 characters. end: nothing follows that could combine. */
int tok_nfc_add(struct tok_nfc *x, const uint8_t *p, size_t n, bool end, struct tok_buf *out, struct err *e);
void tok_nfc_free(struct tok_nfc *x);
bool tok_nfc_boundary(int32_t c);

/* Merging: p [n] to ids. Space is kept in the struct between calls. */
struct tok_cached { /* one cache line */
    uint8_t n, n_ids;
    uint8_t key[30];
    int32_t ids[8];
};
struct tok_bpe {
    uint32_t *id, *next, *prev; /* [cap] */
    uint64_t *heap;             /* [heap_cap] rank << 32 | position */
    size_t cap, heap_cap, n_heap;
    struct tok_cached *cache; /* [TOK_CACHE] */
    int32_t *ids;             /* [n_ids] the result */
    size_t n_ids, ids_cap;
};
#define TOK_CACHE 16384
int tok_bpe_init(struct tok_bpe *b, struct err *e);
void tok_bpe_free(struct tok_bpe *b);
/* Ids of one piece in *ids [*n_ids], valid until the next call. Time O(n log n). */
int tok_bpe_piece(struct tok_bpe *b, const struct tokenizer *t, const uint8_t *p, size_t n,
                  const int32_t **ids, size_t *n_ids, struct err *e);

/* The importer over texts in memory: what tok_import reads from a directory. NULL: that file is not there. */
struct tok_hf {
    const char *text[4];
    size_t size[4];
};
enum { TOK_HF_TOKENIZER, TOK_HF_TOKENIZER_CONFIG, TOK_HF_GENERATION_CONFIG, TOK_HF_CONFIG };
extern const char *const tok_hf_names[4];
int tok_import_texts(struct gguf_writer *w, const struct tok_hf *f, int64_t n_vocab, struct err *e);

#endif
