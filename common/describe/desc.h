/* desc.h - what a model file says, as one internal description, whatever dialect it was written in.
 *
 * A description is read from a GGUF's keys and tensor shapes and checked whole: a missing or unknown part is
 * an error naming the key, what was expected and what was found; nothing is defaulted. convert writes what
 * desc_read reads. A family of models is one file (desc_llama.c, ...) over the parts in desc_impl.h. */
#ifndef DFLASH_DESC_H
#define DFLASH_DESC_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../file/gguf.h"
#include "ends.h"

enum desc_arch {
    DESC_QWEN3,
    DESC_QWEN3MOE,
    DESC_QWEN35,
    DESC_QWEN35MOE,
    DESC_GEMMA4,
    DESC_LLAMA,
    DESC_DFLASH,
    DESC_GEMMA4_ASSISTANT, /* a drafter that reads its Gemma 4 target's own keys and values */
    DESC_QWEN35_MTP,       /* the block of a Qwen3.5 file that predicts further tokens, as a drafter */
};

/* How a DSpark drafter makes what it adds of the embedding of the token before: of it alone; gated by the row
 * and itself; by a small recurrent unit over the rows. */
enum desc_markov { MARKOV_VANILLA, MARKOV_GATED, MARKOV_RNN };

#define DESC_MAX_LAYERS 1024
#define DESC_MAX_TAPS 64
#define DESC_MAX_STOPS 32 /* in keys */
#define DESC_MAX_ROPES 2

/* One set of rotary frequencies: pair i < n_rot/2 turns by position * theta^(-2i/base), divided by element i
 * of rope_freqs.weight where has_divisors. */
struct desc_rope {
    float theta;
    int32_t n_rot;     /* dimensions of a head that turn: the first ones */
    int32_t base;      /* under the exponent: n_rot in every family so far */
    bool interleaved;  /* pairs (2i, 2i+1); else (i, i + n_rot/2) */
    bool has_divisors; /* rope_freqs.weight [n_rot/2] */
};

struct desc_layer {
    int32_t window;    /* 0: full attention; else keys with row - key < window */
    bool causal;       /* targets: always. Drafters: inside the block */
    bool recurrent;    /* a gated delta net: no attention, no keys and values; heads are 0 */
    bool value_is_key; /* no attn_v: values are made of the key projection */
    int32_t n_head, n_head_kv, head_dim; /* of its attention */
    int32_t rope;                        /* index into desc.rope */
    int32_t n_ff;                        /* of its dense feed-forward, 0: none */
    bool moe;                            /* it has experts (in place of, or beside the dense feed-forward) */
};

struct desc {
    enum desc_arch arch;
    const char *arch_name;                  /* general.architecture */
    const char *dialect;                    /* drafters: "upstream", ... ; targets: "" */
    const struct dialect *spelling;         /* drafters: its row (dialect.h), else NULL */
    const char *fc_name, *hidden_norm_name; /* drafters: tensors as the file names them */
    const char *ffn_norm_name;              /* the same, after "blk.N." */
    char name[128];                         /* general.name, may be "" */
    int32_t n_layer, n_embd;
    int32_t first_block; /* the tensors of layer i are blk.(first_block + i). */
    int32_t n_vocab;     /* 0: a drafter that does not say */
    int32_t n_ctx_train; /* 0: not known (a drafter converted without config.json) */
    int32_t n_nextn;     /* blocks behind the n_layer that predict further tokens: no part of this pass */
    float rms_eps;
    bool tied_head; /* no output.weight: the embedding is the head */
    struct desc_layer layer[DESC_MAX_LAYERS];
    int32_t n_rope; /* sets in use, 1 or more */
    struct desc_rope rope[DESC_MAX_ROPES];
    /* experts: 0 where no layer has any */
    int32_t n_expert, n_expert_used, n_ff_exp;
    int32_t n_ff_shexp;         /* of the shared expert, 0: none */
    float expert_weights_scale; /* on the normalised weights of the chosen ones; 1 where nothing says other */
    bool gate_up_fused;         /* ffn_gate_up_exps, gate rows first, in place of the two */
    bool gated_attention;       /* attn_q holds [q | gate] a head, the gate goes on the attention's output */
    /* gated delta nets: 0 where no layer is recurrent */
    int32_t n_k, n_v, d_k, d_v; /* key and value heads and their sizes */
    int32_t n_conv;             /* taps of the short convolution */
    /* drafters */
    int32_t block_size, mask_id;
    int32_t first_row;  /* of a block, that proposes the token behind the anchor: 1, or 0 where the anchor's
                           own row does */
    int32_t block_most; /* rows of a cycle at most: desc_cycle_rows, but where any number does */
    bool apart;         /* MTP: the file holds nothing else; else its target too */
    int32_t n_embd_target;      /* assistants: the target's width */
    int32_t n_clusters, n_best; /* assistants: of the vocabulary, and those whose ids count; 0: no clusters */
    const char *pre_name, *post_name; /* assistants: tensors as the file names them */
    bool own_embed, own_head; /* MTP: nextn.embed_tokens, nextn.shared_head_head in place of the target's */
    const char *head_norm;    /* MTP: the tensor of the norm before the head */
    int32_t idle_rows;        /* behind those that propose: Domino's last row with shift_label */
    int32_t n_taps, taps[DESC_MAX_TAPS]; /* zero-based blocks whose output is tapped, in the order of fc's
                                            columns; -1: the embeddings, scaled as block 0 reads them */
    int32_t n_features;                  /* width of fc's input = n_taps * the target's n_embd */
    int32_t tap_shift;    /* what was taken off the ids that the file stores; taps_given: nothing was */
    bool taps_given;      /* by a flag, not by the file */
    bool causal_inferred; /* layer[].causal stands neither in the file nor in a flag */
    /* The file has attention.causal, which does not count in its dialect, and some layer is not as it says */
    bool causal_ignored;
    /* What it is: "DFlash", or a relative ("DFlash2", "DSpark", ...); whether it is of a kind that is run
     * (common/model/draft.h), with no piece of another; then the keys and tensors that show it. */
    const char *kind;
    bool runs;
    char pieces[512];                  /* "" where it is a plain DFlash drafter */
    int32_t conv_kernel, conv_group;   /* DFlash2, else 0 */
    int32_t selector_rank, selector_k; /* DFlash2, else 0 */
    int32_t n_vocab_draft;             /* rows of d2t and of the head, 0: the whole vocabulary */
    int32_t d2t_top;                   /* the largest id in d2t */
    /* DSpark: what is added to a row's logits for the token before it; the probability of a proposal to be
     * taken, made of the row, or of the row and that token. Rank 0: nothing is added. */
    enum desc_markov markov;
    int32_t markov_rank;
    bool confidence, confidence_markov;
    /* Domino, else 0: the state of what it has read of the block, the width between the two products of its
     * correction, and how many proposals of a block are made without it. */
    int32_t n_state, n_correct, pure_prefix;
    /* Where has_*; else the target's own. Targets always have a scale. */
    bool has_embedding_scale, has_softcap;
    float embedding_scale, softcap;
    float logit_scale; /* drafters: of the logits, before the cap */
    /* drafters: of other blocks than Qwen3's (desc_dflash.c). Scale of scores, 0: by the head's size. */
    float attention_scale;
    float value_scale; /* of what Wo leaves, 0: none */
    bool gelu, other_block;
    bool sinks; /* drafters: some layer has attn_sinks */
    /* What a rule of the format decided because the file is silent, a sentence each, for -v; "" if nothing */
    char inferred[512];
    /* tokenizer and stopping, where the file has them; ids, -1 if absent */
    int32_t bos_id, eos_id;
    /* Union of eos, eot and generation_config's list, then, of targets, further tokens whose text is a known
     * end (ends.h): those from n_stops_said on. */
    int32_t n_stops, n_stops_said, stops[DESC_MAX_STOPS + ENDS_MAX];
    int32_t n_tokens; /* of the file's tokenizer, 0 if none */
    bool add_bos, has_tokenizer;
    uint32_t tokenizer_crc; /* crc32 over tokens and merges, 0 if none */
    /* Of targets: desc_norm_crc. Of drafters: that of the target which the file says it was made for. */
    bool has_norm_crc;
    uint32_t norm_crc;
    uint8_t identity[16]; /* of the file: over its keys, tensor infos and samples of every tensor's data */
};

/* Flags that override or supply drafter parts, or say how to read them. */
struct desc_override {
    bool drafter;         /* a file that holds a target and its MTP block is wanted for the block */
    int32_t draft_causal; /* -1: as the file says; 0, 1: force every layer */
    const char *dialect;  /* of the file; NULL: recognise it */
    int32_t n_taps, taps[DESC_MAX_TAPS]; /* zero-based blocks; n_taps 0: as the file says */
    bool has_tap_shift, has_mask_id;
    int32_t tap_shift, mask_id;
    int32_t block_size;             /* 0: as the file says */
    float rope_theta;               /* 0: as the file says */
    int32_t sliding_window;         /* 0: as the file says */
    const char *sliding_pattern;    /* a letter a layer, s (sliding) or f (full); NULL: as the file says */
    const struct gguf_override *kv; /* [n_kv] keys that who opens the file sets before it is described */
    int n_kv;
    const char *flag; /* what the names of these flags begin with, for hints; NULL: "--draft-" */
};

/* The name of the first of these flags that is given, without what it begins with ("taps"), or NULL; with
 * "--" the dialect's is "from-dialect". */
const char *desc_override_given(const struct desc_override *o);

/* The description of a file, of any architecture in desc_arch_names, to be freed; o may be NULL. ERR_FORMAT:
 * a part that is missing, unknown or does not fit, by its name; ERR_USAGE: a flag for drafters and a target.
 */
int desc_read(struct desc **d, const struct gguf *g, const struct desc_override *o, struct err *e);
void desc_free(struct desc *d);
/* Does a file of whatever architecture hold an MTP block, beside a target or alone? */
bool desc_holds_mtp(const struct gguf *g);
bool desc_is_assistant(struct gguf_str arch); /* of Gemma 4, in one of its spellings */
/* Is it a vocabulary alone: tokens, and no tensor. desc_read refuses it as such. */
bool desc_vocabulary_only(const struct gguf *g);
/* Do they fit: hidden size x taps = fc's width, taps in range, vocabulary, mask id, embedding width. First
 * misfit is the error. */
int desc_pair(const struct desc *target, const struct desc *drafter, struct err *e);

/* Of a DFlash drafter: so many positions, the last, are what a row of a layer without a window sees unless
 * somebody wants more: three windows, the widest's, where other layers have one; 0: all. Drafters of the kind
 * were trained on short contexts, and what a block costs would grow with the context. */
int32_t desc_draft_reach(const struct desc *d);

/* Where drafters of n taps are attached to a target of n_layer blocks unless somebody decides otherwise:
 * evenly from block 1 to the third last. Round half to even, as the exporters do. */
void desc_usual_taps(int32_t n_layer, int32_t n, int32_t *taps);
/* The first block that a list of taps names twice, or -1. The usual taps of a target with too few blocks
 * (n_layer; 0: of any) repeat some, and drafters are trained so: they pass. */
int32_t desc_tap_twice(const int32_t *taps, int32_t n, int32_t n_layer);

/* crc32 of output_norm.weight's float32 values; false where it is of another type or not there. It is the
 * same in every type that a model is converted to, and another one in every model that was trained apart.
 * Drafters name their target by it. */
bool desc_norm_crc(const struct gguf *g, uint32_t *crc);
#define DESC_NORM_KEY "target_norm_crc32"
/* Do they, as far as both say, not belong together? */
bool desc_other_target(const struct desc *target, const struct desc *drafter);

#define DESC_REDUCED_HINT "a head of fewer rows than the vocabulary needs a table d2t, which names their ids"
/* The id of a row of d2t, of a drafter that has a reduced vocabulary. */
int64_t desc_d2t(const struct gguf *g, int64_t row);

/* What an error about a drafter that cannot be run says: "a DFlash2 drafter: ..." with what shows it. Returns
 * -1; 0 where it can. */
int desc_runnable(const struct desc *d, struct err *e);

/* What a drafter that is no DFlash drafter is, by its architecture ("a Gemma 4 MTP assistant ..."); NULL:
 * none of those that are known. */
const char *desc_stranger(struct gguf_str arch);
/* What is worth telling about a drafter's file: dialect, taps in both conventions, what was inferred. One
 * call a line. flag as in desc_override. */
void desc_tell(const struct desc *d, const char *flag,
               void (*say)(void *ctx, const char *subject, const char *text), void *ctx);

/* Is it a drafter's? */
static inline bool desc_drafts(const struct desc *d)
{
    return d->arch == DESC_DFLASH || d->arch == DESC_QWEN35_MTP || d->arch == DESC_GEMMA4_ASSISTANT;
}
/* Layers of a drafter with a cache of their own; does it read the target's last hidden state? */
static inline int32_t desc_draft_caches(const struct desc *d)
{
    return d->arch == DESC_GEMMA4_ASSISTANT ? 0 : d->n_layer;
}
static inline bool desc_reads_hidden(const struct desc *d)
{
    return d->arch == DESC_QWEN35_MTP || d->arch == DESC_GEMMA4_ASSISTANT;
}
/* Of an assistant's layer: the target's layer whose keys and values it reads, the last one of its kind; -1:
 * there is none. */
int32_t desc_donor(const struct desc *target, const struct desc_layer *y);
/* The first layer with attention (layer 0 where none has any): what is said of a model in one line. */
const struct desc_layer *desc_attention(const struct desc *d);
/* The architectures that are read, for messages: "qwen3, ... or dflash". */
const char *desc_arch_names(void);
/* Rows of a verify at most: the anchor and all that a block of a drafter proposes. */
static inline int32_t desc_cycle_rows(const struct desc *d)
{
    return d->block_size + 1 - d->first_row - d->idle_rows;
}
/* Rows that a block runs where a verify may have rows: fewer, where a block is cut. */
static inline int32_t desc_block_rows(const struct desc *d, int32_t rows)
{
    return rows - 1 + d->first_row + d->idle_rows;
}
/* Values that a token leaves in a delta net layer before the split: 2 n_k d_k + n_v d_v. */
static inline int32_t desc_delta_width(const struct desc *d)
{
    return 2 * d->n_k * d->d_k + d->n_v * d->d_v;
}

#endif
