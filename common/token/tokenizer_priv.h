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
#include "../base/mem.h"
#include "tokenizer.h"

enum tok_type { /* tokenizer.ggml.token_type */
                TOK_NORMAL = 1,
                TOK_UNKNOWN = 2,
                TOK_CONTROL = 3,
                TOK_USER_DEFINED = 4,
                TOK_UNUSED = 5,
                TOK_BYTE = 6, /* SentencePiece style only: "<0xXX>" stands for one byte */
};

/* How text becomes symbols that merge. The two SentencePiece-style kinds work on characters (a character that
 * is no token becomes the tokens of its bytes), without a pre-tokenizer; they write a space as U+2581 in
 * their files, which is undone when the tables are made: here a space is a space. */
enum tok_kind {
    TOK_GPT2,  /* tokenizer.ggml.model "gpt2": bytes, split by a regular expression, merges by rank */
    TOK_GEMMA, /* "gemma4": characters, merges by rank */
    TOK_SPM, /* "llama": characters; every two neighbours that make a token may merge, the best score first */
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
    enum tok_kind kind;
    const struct tok_pre *pre; /* TOK_GPT2, else NULL */
    bool nfc, ignore_merges, add_bos;
    bool space_prefix;            /* a space goes before each text between special tokens (TOK_SPM) */
    int32_t bos;                  /* -1: none */
    const struct gguf_str *token; /* [n_vocab] */
    const int32_t *type;          /* [n_vocab] enum tok_type */
    int64_t n_vocab;
    const struct gguf_str *merge; /* [n_merges] "left right", the earlier the stronger */
    uint64_t n_merges;
    const char *merge_key; /* where the merges stand, for messages */
    const float *score;    /* [n_vocab], TOK_SPM without merges; else NULL */
};
int tok_build(struct tokenizer **t, const struct tok_spec *s, struct err *e);

struct tok_merge { /* an empty slot has rank TOK_NO_RANK */
    uint32_t left, right, rank, id;
};
#define TOK_NO_RANK UINT32_MAX

struct tok_added { /* a token that is found by its text, before anything else looks at it */
    const uint8_t *s;
    uint32_t n;
    int32_t id;
    uint8_t in; /* bits 1 << enum tok_special: which encoders find it */
};

struct tokenizer {
    enum tok_kind kind;
    const struct tok_pre *pre;
    bool nfc, ignore_merges, add_bos, space_prefix;
    int32_t n_vocab, bos;
    uint8_t *type;    /* [n_vocab] */
    uint64_t *offset; /* [n_vocab + 1] into bytes */
    uint8_t *bytes;   /* what each token stands for, one after the other */
    uint32_t *piece;  /* [piece_mask + 1] hash of byte strings: id + 1, or 0 */
    uint64_t piece_mask;
    int32_t byte_id[256];    /* the token of each single byte */
    int32_t ascii_id[128];   /* SentencePiece style: the token of each character below U+0080, or -1 */
    struct tok_merge *merge; /* [merge_mask + 1] hash of (left, right) */
    uint64_t merge_mask;
    uint64_t *joined; /* SentencePiece style: a bit for each pair of characters that a merge can put into one
                         token; by hash, so a bit may stand for other pairs too (tok_joined) */
    struct tok_added *added; /* [n_added] sorted by bytes */
    uint32_t n_added;
    bool first[3][256]; /* [enum tok_special]: a byte with which a token to be found by its text begins */
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

#define TOK_JOINED_BITS 22
/* No token that merging can make holds the characters a, b side by side: then no merge ever crosses a place
 * between them, and what stands on either side is merged as if it were alone. True: it may be so. */
static inline bool tok_joined(const struct tokenizer *t, uint32_t a, uint32_t b)
{
    uint64_t h = (((uint64_t)a << 32) | b) * 0x9e3779b97f4a7c15u >> (64 - TOK_JOINED_BITS);
    return t->joined[h >> 6] >> (h & 63) & 1;
}

/* The character at the valid sequence p; *len: its bytes. */
static inline uint32_t tok_char(const uint8_t *p, size_t *len)
{
    uint8_t c = p[0];
    *len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    switch (*len) {
    case 1: return c;
    case 2: return (c & 0x1fu) << 6 | (p[1] & 0x3fu);
    case 3: return (c & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    default: return (c & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    }
}

/* Parts of tok_build (tokenizer.c), for the SentencePiece-style kinds (tokenizer_spm.c) and shared with them.
 * spelled [n_vocab]: the token can be the result or a part of a merge. */
int tok_no_memory(struct err *e, const char *what);
int tok_shown(struct gguf_str s); /* at most 60 bytes of a token's text for a message */
int tok_merge_table(struct tokenizer *t, uint64_t n, struct err *e); /* for n merges, empty */
/* The table, and each merge of s in it by add; work [longest merge + 1] is add's scratch. */
typedef int tok_merge_fn(struct tokenizer *t, const struct tok_spec *s, uint64_t rank, uint8_t *work,
                         struct err *e);
int tok_merges_each(struct tokenizer *t, const struct tok_spec *s, tok_merge_fn *add, struct err *e);
void tok_merge_put(struct tokenizer *t, struct tok_merge m); /* not yet there */
int tok_spm_bytes(struct tokenizer *t, const struct tok_spec *s, bool *spelled, struct err *e);
int tok_spm_byte_ids(struct tokenizer *t, const struct tok_spec *s, struct err *e);
int tok_spm_merges(struct tokenizer *t, const struct tok_spec *s, const bool *spelled, struct err *e);
/* Text [n] with U+2581 as a space, to out [at most n]; returns the bytes written. */
size_t tok_spm_spaces(const char *s, size_t n, uint8_t *out);

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
#ifndef TOK_CACHE /* a power of two; `make fuzz` has a small one, which collides more and is faster to clear \
                   */
#define TOK_CACHE 16384
#endif
int tok_bpe_init(struct tok_bpe *b, struct err *e);
void tok_bpe_free(struct tok_bpe *b);
/* Ids of one piece in *ids [*n_ids], valid until the next call. Time O(n log n). */
int tok_bpe_piece(struct tok_bpe *b, const struct tokenizer *t, const uint8_t *p, size_t n,
                  const int32_t **ids, size_t *n_ids, struct err *e);

/* The importer over texts in memory: what tok_import reads from a directory. NULL: that file is not there. */
struct tok_hf {
    const char *text[4];
    size_t size[4];
    const char *chat; /* chat_template.jinja */
    size_t chat_size;
};
enum { TOK_HF_TOKENIZER, TOK_HF_TOKENIZER_CONFIG, TOK_HF_GENERATION_CONFIG, TOK_HF_CONFIG };
extern const char *const tok_hf_names[4];
int tok_import_texts(struct gguf_writer *w, const struct tok_hf *f, int64_t n_vocab, struct err *e);

#endif
