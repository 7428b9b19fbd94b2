/* dialect.h - how the GGUFs of different engines spell one and the same drafter.
 *
 * A dialect is one row of one table: its architecture, where it keeps the taps and what it adds to them, its
 * keys and tensor names, and what its own readers can and cannot take. Reading recognises a row and reads
 * through it (desc_dflash.c), writing takes the row asked for (convert_dflash.c, relabel.c). Everything the
 * dialects agree about stands outside of the table. docs/drafter.md has the table for people. */
#ifndef DFLASH_DIALECT_H
#define DFLASH_DIALECT_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../file/gguf.h"

#define DIALECT_MAX_TAPS 64

/* What the key beside the taps that names a width or a count holds. */
enum dialect_width {
    WIDTH_NONE,     /* there is none */
    WIDTH_FEATURES, /* fc's input: taps x the target's width */
    WIDTH_TAPS,     /* number of taps; known to lie (a script writes the target's depth there) */
    WIDTH_TARGET,   /* the target's width */
};

/* What attention.causal, one bool for all layers, is to a dialect's own writers and readers. */
enum dialect_causal {
    CAUSAL_NONE,     /* there is no such key */
    CAUSAL_OPTIONAL, /* it counts; absent: no layer is causal in the block */
    CAUSAL_IGNORED,  /* always written, as false, and not looked at but in a Laguna drafter */
};

/* Keys are relative to the architecture ("block_size": "dflash.block_size"). */
struct dialect {
    const char *name;  /* as --dialect has it */
    const char *whose; /* whose readers and writers */
    const char *arch;  /* general.architecture, and the prefix of its keys */
    /* What tells it from others of its architecture: a key or tensor that must be there. NULL: nothing. */
    const char *tell_key, *tell_tensor;
    const char *taps_key;
    int32_t tap_shift; /* stored id - zero-based block whose output is tapped */
    const char *block_key;
    const char *mask_key; /* NULL: tokenizer.ggml.mask_token_id */
    bool mask_too;        /* its readers look there as well */
    const char *width_key;
    enum dialect_width width;
    const char *fc, *hidden_norm, *ffn_norm; /* ffn_norm after "blk.N." */
    /* Other spellings that its readers take too; NULL: none. */
    const char *fc_too, *hidden_norm_too, *ffn_norm_too;
    enum dialect_causal causal;
    bool slides_causal;  /* its readers take sliding layers as causal in the block, full ones not; else see
                            causal */
    bool windows;        /* its readers know sliding layers */
    bool own_ends;       /* may carry token_embd.weight and output.weight */
    bool ties;           /* token_embd.weight without output.weight is the head, too */
    bool softcap;        /* its readers look at final_logit_softcapping */
    bool tokenizer;      /* its readers need the target's tokenizer in the file */
    bool extended;       /* has names for DFlash2's and DSpark's tensors */
    const char *refused; /* recognised, but neither read nor written: why; else NULL */
};

extern const struct dialect dialects[]; /* ends with name NULL */

const struct dialect *dialect_by_name(const char *name); /* NULL: unknown */
/* "upstream, unshifted, ..." those that can be written. */
const char *dialect_names(void);
/* Is this general.architecture one of a drafter's, known or not: it is in the table or holds "dflash". */
bool dialect_is_drafter(struct gguf_str arch);

/* The row of a file, or -1 with the reason: no such architecture, keys under another prefix, taps under two
 * keys, or under none (which taps_given excuses). forced: the name of a row to take (its architecture must be
 * the file's), or NULL. flag: what the names of the flags that help begin with ("--draft-"), for hints. */
int dialect_find(const struct dialect **x, const struct gguf *g, const char *forced, bool taps_given,
                 const char *flag, struct err *e);

/* x->arch "." rel; rel NULL (the mask's): tokenizer.ggml.mask_token_id. Returns buf. */
const char *dialect_key(const struct dialect *x, const char *rel, char *buf, size_t n);

/* Tensor names across dialects: the spelling of upstream for a name of any dialect, and of dialect x for one
 * of upstream. A name that the dialects agree about stays. Both return buf. */
const char *dialect_to_upstream(const char *name, char *buf, size_t n);
const char *dialect_from_upstream(const struct dialect *x, const char *name, char *buf, size_t n);

/* How the file spells a DFlash2 tensor that upstream calls name: that, or the name that lucebox and buun give
 * it where it alone is there. Returns buf. */
const char *dialect_spelled(const struct gguf *g, const char *name, char *buf, size_t n);

/* The parts that dialects spell differently, put into a file in x's way. */
struct dialect_parts {
    int32_t n_taps;
    const int32_t *taps; /* zero-based */
    int32_t block_size, mask_id, n_features;
};
int dialect_put(struct gguf_writer *w, const struct dialect *x, const struct dialect_parts *p, struct err *e);

#endif
