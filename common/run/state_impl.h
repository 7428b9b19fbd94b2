/* state_impl.h - the parts of a state that state_meta.c (reading what it says of itself), state.c (sessions)
 * and those who keep context of their own, sources (source.h), share. */
#ifndef DFLASH_STATE_IMPL_H
#define DFLASH_STATE_IMPL_H

#include "../file/snapshot.h"
#include "state.h"

enum { STATE_NAME = 128 }; /* bytes of a model's name */

/* META in memory; on paper: little-endian u32 of the target and of the first drafter, then the identities,
 * the names, the taps, and, where kv_type is STATE_MIXED, the types of every layer; then the second drafter,
 * and, where parts has STATE_SPARSE, alpha (float) and the number of dense layers; last what
 * session_gaps says, where it has STATE_GAPS. */
#define STATE_HIDDEN 1u /* of parts: the target's last hidden state stands behind the drafter's layers */
#define STATE_BESIDE 2u /* on paper alone: there is a second drafter */
#define STATE_SPARSE 4u /* on paper alone: sparse prompts */
#define STATE_POOL 8u   /* a pool (pages.h): its positions stand last, and a section POOL ends the state */
#define STATE_GAPS 16u  /* on paper alone: a compressed prompt, what session_gaps says; its places: KEPT */
#define STATE_MIXED KN_TYPE_NONE /* caches are not all of one type */
struct state_drafter {
    uint32_t n_layer, n_taps, parts;
    uint8_t id[16];
    char name[STATE_NAME];
    uint32_t taps[DESC_MAX_TAPS];
    struct kn_kv_types kv[DESC_MAX_LAYERS];
};
struct state_meta {
    uint32_t n_tokens, chunk, kv_type, n_vocab, n_layer, n_drafters;
    struct session_sparse sparse;
    int32_t pool; /* positions; 0: none */
    struct session_gaps gaps;
    uint8_t target_id[16];
    char target[STATE_NAME];
    struct kn_kv_types kv[DESC_MAX_LAYERS]; /* KN_TYPE_NONE: a layer without any */
    struct state_drafter by[PLAN_SOURCES];  /* [n_drafters]; all zero behind */
};

struct state {
    struct snap_reader r;
    int fd;
    char *name;
    struct state_meta m;
    const struct state_drafter *loading; /* whose sections are read; NULL: nobody's */
};

void state_put_u32(uint8_t *p, uint32_t v);
uint32_t state_get_u32(const uint8_t *p);
/* META to STATE_META_MOST bytes at p; returns how many it has. */
enum { STATE_META_FIXED = 32 + 2 * 16 + 2 * STATE_NAME };
enum { STATE_META_GAPS = 3 * 4 + 16 + STATE_NAME }; /* n_text, n_kept, keep (float); scorer */
enum { STATE_META_SECOND = 12 + 16 + STATE_NAME };  /* of the second drafter, before its taps */
enum {
    STATE_META_MOST =
        STATE_META_FIXED + STATE_META_SECOND + 8 * DESC_MAX_TAPS + 24 * DESC_MAX_LAYERS + 12 + STATE_META_GAPS
};
size_t state_meta_pack(const struct state_meta *m, uint8_t *p);
/* The next section, which must be this one; size 0: of any size. */
int state_section(struct state *st, const char *tag, uint64_t size, struct err *e);

/* Keys and values of one layer as a section: the positions that rows from end on can still see. */
int state_save_layer(struct session *s, const struct kn_kv *kv, const struct desc_layer *y, int32_t end,
                     const char *tag, struct snap_writer *w, struct err *e);
int state_load_layer(struct state *st, struct session *s, const struct kn_kv *kv, const struct desc_layer *y,
                     int32_t end, const char *tag, struct err *e);

#endif
