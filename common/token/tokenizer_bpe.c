/* tokenizer_bpe.c - the merging of one piece: of all adjacent pairs that have a rule, the pair of the lowest
 * rank is merged, the leftmost where several have it, until none is left (as in Sennrich et al. 2016, and
 * tokenizer.json's BPE). */
#include <string.h>
#include "tokenizer_priv.h"

#define SHORT 48 /* bytes up to which rescanning beats the heap */

int tok_bpe_init(struct tok_bpe *b, struct err *e)
{
    memset(b, 0, sizeof *b);
    b->cache = mem_calloc(TOK_CACHE, sizeof *b->cache);
    return b->cache ? 0 : err_set(e, ERR_IO, "out of memory (the cache of pieces)");
}

void tok_bpe_free(struct tok_bpe *b)
{
    mem_free(b->id);
    mem_free(b->next);
    mem_free(b->prev);
    mem_free(b->heap);
    mem_free(b->cache);
    mem_free(b->ids);
}

static void *grown(void *p, size_t n, size_t size, struct err *e)
{
    void *q = n > SIZE_MAX / size ? NULL : mem_realloc(p, n * size);
    if (!q) err_set(e, ERR_IO, "out of memory (a piece of %zu bytes)", n);
    return q;
}

static int reserve(struct tok_bpe *b, size_t n, struct err *e)
{
    if (n > UINT32_MAX - 2)
        return err_set(e, ERR_FORMAT, "a piece of %zu bytes without a place to split (at most 4294967293)",
                       n);
    if (n > b->ids_cap) {
        size_t cap = n + n / 2 + 64;
        int32_t *ids = grown(b->ids, cap, sizeof *ids, e);
        if (!ids) return -1;
        b->ids = ids;
        b->ids_cap = cap;
    }
    if (n <= SHORT || n <= b->cap) return 0;
    size_t cap = n + n / 2 + 64;
    uint32_t **part[3] = {&b->id, &b->next, &b->prev};
    for (int i = 0; i < 3; i++) {
        uint32_t *q = grown(*part[i], cap, sizeof *q, e);
        if (!q) return -1;
        *part[i] = q;
    }
    /* Every symbol starts at most one pair, and every merge makes at most two new ones. */
    uint64_t *heap = grown(b->heap, 3 * cap, sizeof *heap, e);
    if (!heap) return -1;
    b->heap = heap;
    b->heap_cap = 3 * cap;
    b->cap = cap;
    return 0;
}

/* What merging starts from: bytes, or characters (the tokens of its bytes for one that is no token). p [n] to
 * id [at most n]; returns how many. */
static size_t symbols(const struct tokenizer *t, const uint8_t *p, size_t n, uint32_t *id)
{
    size_t k = 0, len;
    if (t->kind == TOK_GPT2) {
        for (; k < n; k++) id[k] = (uint32_t)t->byte_id[p[k]];
        return n;
    }
    for (size_t i = 0; i < n; i += len) {
        int utf8 = tok_utf8(p + i, n - i); /* ill-formed bytes come here as pieces of their own */
        len = utf8 > 0 ? (size_t)utf8 : 1;
        int32_t c = utf8 <= 0 ? -1 : len == 1 ? t->ascii_id[p[i]] : tok_find_piece(t, p + i, len);
        if (c >= 0)
            id[k++] = (uint32_t)c;
        else
            for (size_t j = 0; j < len; j++) id[k++] = (uint32_t)t->byte_id[p[i + j]];
    }
    return k;
}

static void merge_short(struct tok_bpe *b, const struct tokenizer *t, const uint8_t *p, size_t n)
{
    uint32_t id[SHORT], rank[SHORT], made[SHORT];
    n = symbols(t, p, n, id);
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tok_merge *m = tok_find_merge(t, id[i], id[i + 1]);
        rank[i] = m ? m->rank : TOK_NO_RANK;
        made[i] = m ? m->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == TOK_NO_RANK) break;
        id[best] = made[best];
        n--;
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            made[i] = made[i + 1];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct tok_merge *m = tok_find_merge(t, id[i], id[i + 1]);
            rank[i] = m ? m->rank : TOK_NO_RANK;
            made[i] = m ? m->id : 0;
        }
    }
    for (size_t i = 0; i < n; i++) b->ids[i] = (int32_t)id[i];
    b->n_ids = n;
}

static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && h[k + 1] < h[k]) k++;
        if (v <= h[k]) break;
        h[i] = h[k];
    }
    h[i] = v;
}

static void heap_push(struct tok_bpe *b, uint64_t v)
{
    size_t i = b->n_heap++;
    for (; i > 0 && b->heap[(i - 1) / 2] > v; i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = v;
}

static void push_pair(struct tok_bpe *b, const struct tokenizer *t, uint32_t at)
{
    const struct tok_merge *m = tok_find_merge(t, b->id[at], b->id[b->next[at]]);
    if (m) heap_push(b, (uint64_t)m->rank << 32 | at);
}

/* The same with a heap of (rank, position) over a linked list of symbols. An entry whose pair has changed
 * meanwhile is dropped when it comes up: unless the new pair has the same rank, and then it is due here too
 * (where ranks are scores, several pairs share one). */
static void merge_long(struct tok_bpe *b, const struct tokenizer *t, const uint8_t *p, size_t n_bytes)
{
    const uint32_t none = UINT32_MAX, n = (uint32_t)symbols(t, p, n_bytes, b->id);
    b->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        b->next[i] = i + 1 < n ? i + 1 : none;
        b->prev[i] = i ? i - 1 : none;
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct tok_merge *m = tok_find_merge(t, b->id[i], b->id[i + 1]);
        if (m) b->heap[b->n_heap++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = b->n_heap / 2; i-- > 0;) sift_down(b->heap, b->n_heap, i);
    while (b->n_heap) {
        uint64_t top = b->heap[0];
        b->heap[0] = b->heap[--b->n_heap];
        if (b->n_heap) sift_down(b->heap, b->n_heap, 0);
        uint32_t at = (uint32_t)top, right = b->next[at];
        if (b->id[at] == none || right == none) continue;
        const struct tok_merge *m = tok_find_merge(t, b->id[at], b->id[right]);
        if (!m || m->rank != top >> 32) continue;
        b->id[at] = m->id;
        b->id[right] = none; /* swallowed: its own entries count no more */
        b->next[at] = b->next[right];
        if (b->next[at] != none) {
            b->prev[b->next[at]] = at;
            push_pair(b, t, at);
        }
        if (b->prev[at] != none) push_pair(b, t, b->prev[at]);
    }
    b->n_ids = 0;
    for (uint32_t i = 0; i != none; i = b->next[i]) b->ids[b->n_ids++] = (int32_t)b->id[i];
}

int tok_bpe_piece(struct tok_bpe *b, const struct tokenizer *t, const uint8_t *p, size_t n,
                  const int32_t **ids, size_t *n_ids, struct err *e)
{
    struct tok_cached *c = NULL;
    if (n <= sizeof c->key) {
        c = &b->cache[tok_hash(p, n) & (TOK_CACHE - 1)];
        if (c->n == n && memcmp(c->key, p, n) == 0) {
            *ids = c->ids;
            *n_ids = c->n_ids;
            return 0;
        }
    }
    if (reserve(b, n, e)) return -1;
    int32_t whole = t->ignore_merges ? tok_find_piece(t, p, n) : -1;
    if (whole >= 0 && t->type[whole] == TOK_NORMAL) {
        b->ids[0] = whole;
        b->n_ids = 1;
    } else if (n <= SHORT) {
        merge_short(b, t, p, n);
    } else {
        merge_long(b, t, p, n);
    }
    *ids = b->ids;
    *n_ids = b->n_ids;
    if (c && b->n_ids <= sizeof c->ids / sizeof *c->ids) {
        memcpy(c->key, p, n);
        memcpy(c->ids, b->ids, b->n_ids * sizeof *c->ids);
        c->n = (uint8_t)n;
        c->n_ids = (uint8_t)b->n_ids;
    }
    return 0;
}
