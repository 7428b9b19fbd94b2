/* state_impl.h - sections of a state for those who keep context of their own: sources (source.h). */
#ifndef DFLASH_STATE_IMPL_H
#define DFLASH_STATE_IMPL_H

#include "../file/snapshot.h"
#include "state.h"

/* Keys and values of one layer as a section: the positions that later rows can still see. */
int state_save_layer(struct session *s, const struct kn_kv *kv, const struct desc_layer *y, const char *tag,
                     struct snap_writer *w, struct err *e);
int state_load_layer(struct state *st, struct session *s, const struct kn_kv *kv, const struct desc_layer *y,
                     const char *tag, struct err *e);

#endif
