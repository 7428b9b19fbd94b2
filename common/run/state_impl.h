/* state_impl.h - the parts of a state that state_meta.c (reading what it says of itself), state.c (sessions)
 * and those who keep context of their own, sources (source.h), share. */
#ifndef DFLASH_STATE_IMPL_H
#define DFLASH_STATE_IMPL_H

#include "../file/snapshot.h"
#include "state.h"

enum { STATE_NAME = 128 }; /* bytes of a model's name */

/* META in memory; on paper: little-endian u32 in this order, then the identities, the names, the taps, and,
 * where kv_type is STATE_MIXED, the types of every layer, and, where parts has STATE_SPARSE, alpha (float)
 * and the number of dense layers. */
#define STATE_HIDDEN 1u /* of parts: the target's last hidden state stands behind the drafter's layers */
#define STATE_SPARSE 2u /* sparse prompts: alpha and dense layers stand behind the types */
#define STATE_GAPS 4u   /* a compressed prompt: what session_gaps says stands last, the places in KEPT */
#define STATE_MIXED KN_TYPE_NONE /* caches are not all of one type */
struct state_meta {
    uint32_t n_tokens, chunk, kv_type, n_vocab, n_layer, n_draft_layer, n_taps, parts;
    uint8_t target_id[16], drafter_id[16];
    char target[STATE_NAME], drafter[STATE_NAME];
    struct session_sparse sparse;
    struct session_gaps gaps;
    uint32_t taps[DESC_MAX_TAPS];
    struct kn_kv_types kv[2][DESC_MAX_LAYERS]; /* of target and drafter; KN_TYPE_NONE: a layer without any */
};

struct state {
    struct snap_reader r;
    int fd;
    char *name;
    struct state_meta m;
};

void state_put_u32(uint8_t *p, uint32_t v);
uint32_t state_get_u32(const uint8_t *p);
/* META to STATE_META_MOST bytes at p; returns how many it has. */
enum { STATE_META_FIXED = 32 + 2 * 16 + 2 * STATE_NAME };
enum { STATE_META_GAPS = 3 * 4 + 16 + STATE_NAME }; /* n_text, n_kept, keep (float); scorer */
enum { STATE_META_MOST = STATE_META_FIXED + 4 * DESC_MAX_TAPS + 16 * DESC_MAX_LAYERS + 8 + STATE_META_GAPS };
size_t state_meta_pack(const struct state_meta *m, uint8_t *p);
/* The next section, which must be this one; size 0: of any size. */
int state_section(struct state *st, const char *tag, uint64_t size, struct err *e);

/* Keys and values of one layer as a section: the positions that rows from end on can still see. */
int state_save_layer(struct session *s, const struct kn_kv *kv, const struct desc_layer *y, int32_t end,
                     const char *tag, struct snap_writer *w, struct err *e);
int state_load_layer(struct state *st, struct session *s, const struct kn_kv *kv, const struct desc_layer *y,
                     int32_t end, const char *tag, struct err *e);

#endif
