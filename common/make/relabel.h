/* relabel.h - what a dialect can say of a drafter, and the keys of a drafter's GGUF in another dialect. */
#ifndef DFLASH_RELABEL_H
#define DFLASH_RELABEL_H

#include <stdbool.h>
#include "convert.h"
#include "../describe/desc.h"
#include "../describe/dialect.h"
#include "../file/gguf.h"

/* The parts of a drafter that not every dialect has a place for. */
struct relabel_facts {
    const char *label;          /* of the input, for messages */
    const char *kind, *pieces;  /* as in struct desc; pieces "" where it is a plain DFlash drafter */
    const struct dialect *from; /* NULL: a checkpoint */
    int32_t n_layer;
    const struct desc_layer *layer; /* [n_layer]: window, causal */
    bool own_embed, own_head, tied; /* tied: the embedding of its own is the head */
    bool has_scale, has_softcap, has_multiplier;
    bool tokenizer; /* in the file that is written */
    double rms_eps;
};

/* What to has no place for and what would change the drafter is an error; what only its own readers take
 * another way (ours find it in our keys) is a note through o->say. */
int relabel_check(const struct dialect *to, const struct relabel_facts *f, const struct convert *o,
                  struct err *e);

/* The note of it about layers that are causal in the block. */
void relabel_causal(const struct dialect *to, const struct relabel_facts *f, const struct convert *o);

/* The keys of in, described by d, in dialect to: all of them, in order, those of the architecture under the
 * new prefix, the parts that dialects spell differently as to has them; over: what flags changed. put_general
 * writes the keys that begin with "general.", but the architecture. */
int relabel_keys(struct gguf_writer *w, const struct gguf *in, const struct desc *d, const struct dialect *to,
                 const struct desc_override *over,
                 int (*put_general)(void *ctx, const struct gguf_kv *kv, struct err *e), void *ctx,
                 struct err *e);

#endif
