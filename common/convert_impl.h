/* convert_impl.h - what the files of the converter share: a family's tables, and a conversion under way.
 *
 * A new family is one file with a struct conv_family and one line in the list of convert.c. */
#ifndef DFLASH_CONVERT_IMPL_H
#define DFLASH_CONVERT_IMPL_H

#include "convert.h"
#include "desc.h"
#include "gguf.h"
#include "hf_config.h"
#include "safetensors.h"

/* Sizes that shapes are spelled with. The first tensor that has one sets it, every other one must agree. */
enum conv_dim {
    DIM_NONE,
    DIM_EMBD,     /* width of the residual stream */
    DIM_FF,       /* width of the feed-forward */
    DIM_Q,        /* n_head * head_dim */
    DIM_KV,       /* n_head_kv * head_dim */
    DIM_HEAD,     /* head_dim */
    DIM_VOCAB,    /* rows of the embedding */
    DIM_FEATURES, /* drafters: n_taps * width of the target */
    DIM_COUNT,
};

#define CONV_OPTIONAL 1u /* the tensor may be absent */
#define CONV_HEAD                                                                                            \
    2u /* the output matrix: dropped where it is a copy of the embedding and the config ties them */
#define CONV_EMBED 4u /* the embedding */

/* One tensor of a family, or one a layer where the names hold "%d". hf is written without the prefix
 * "model.", which is accepted. dim: in PyTorch order, [out, in] or [n]. Rules are listed in the order of the
 * output; consecutive rules a layer make one group, written layer by layer. */
struct conv_rule {
    const char *hf, *gguf;
    enum conv_dim dim[2];
    unsigned flags;
};

/* A tensor or key that belongs to a relative which is not supported: part of a name, and the relative's name.
 */
struct conv_relative {
    const char *part, *name;
};

struct conv;
struct conv_family {
    const char *hf;                        /* architectures[0] in config.json */
    const char *arch;                      /* general.architecture; key prefix */
    bool drafter;                          /* conditioned on a target; may come without config.json */
    const struct conv_rule *rules;         /* ends with hf NULL */
    const struct hf_rule *config;          /* beside hf_rules_common */
    const struct conv_relative *relatives; /* ends with part NULL, or NULL */
    const char *signature; /* drafters: a tensor that only this family has, for files without config.json */
    int (*parts)(struct conv *c,
                 struct err *e); /* before the shapes: read what they cannot say; may be NULL */
    int (*keys)(struct conv *c,
                struct err *e); /* after the shapes: check, and put the family's own GGUF keys */
};

/* One tensor of the output. */
struct conv_tensor {
    const struct conv_rule *rule;
    int32_t layer; /* -1: not of a layer */
    char name[64];
    const struct st_tensor *src; /* NULL: random */
    uint32_t n_dims, from, to;   /* types; from of a source that GGUF has no type for (F8, F64): KN_F32 */
    int64_t ne[GGUF_MAX_DIMS];
};

/* What is known of the target. */
struct conv_target {
    struct gguf *gguf;
    struct hf_config *cfg;
    int64_t n_embd, n_layer, n_vocab, n_ctx; /* 0: not known */
};

struct conv_drafter {
    int32_t n_taps, taps[CONVERT_MAX_TAPS];
    int64_t block_size, mask_id, window;
    bool sliding[DESC_MAX_LAYERS], causal[DESC_MAX_LAYERS], any_sliding;
};

struct conv {
    const struct convert *o;
    const struct conv_family *fam;
    char *dir;             /* directory of config.json and tokenizer.json, NULL if none */
    char *label;           /* input, for messages */
    struct hf_config *cfg; /* NULL: no config.json */
    struct hf_config *gen; /* generation_config.json or NULL */
    struct st *st;         /* NULL: random */
    struct gguf_writer *w;
    struct conv_target target;
    struct conv_drafter d;

    int64_t dim[DIM_COUNT];
    char dim_from[DIM_COUNT][128]; /* the tensor or key that set it */
    int32_t n_layer, n_head, n_head_kv, head_dim;
    int64_t n_ctx,
        n_vocab; /* n_vocab: rows of the embedding; of a drafter: what config.json says, 0 if nothing */
    double rms_eps, rope_theta;
    bool tied;

    struct conv_tensor *t;
    int64_t n_t;
};

void conv_say(const struct conv *c, enum convert_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* convert_shape.c: tensors to sizes. */
int conv_sizes_from_config(struct conv *c,
                           struct err *e); /* random: config.json's sizes, where no tensor says them */
int conv_map_tensors(struct conv *c,
                     struct err *e); /* fills t, dim, n_layer; every tensor of the input is accounted for */
int conv_heads(struct conv *c,
               struct err *e); /* head_dim, n_head, n_head_kv; checks all sizes with config.json */

/* convert_data.c: from slabs of the source, or random, to the output. */
int conv_plan_types(struct conv *c, struct err *e, uint32_t *file_type);
int conv_write_tensors(struct conv *c, struct io_out *out, struct err *e);

/* convert_random.c: n_rows rows of ne[0] elements of tensor t from row row0 on, in type t->to, at dst. The
 * bytes depend on seed, the tensor's name and the position alone. */
int conv_random_rows(uint64_t seed, const struct conv_tensor *t, int64_t row0, int64_t n_rows, void *dst,
                     int threads, struct err *e);

/* Parts that a flag or config.json gives: flag first, with a warning where the config says another value. */
int conv_get_rope_theta(struct conv *c, struct err *e);
int conv_get_rms_eps(struct conv *c, struct err *e);

/* Put arch-prefixed keys. */
int conv_put_u32(struct conv *c, const char *key, int64_t v, struct err *e);
int conv_put_f32(struct conv *c, const char *key, double v, struct err *e);
int conv_put_common(struct conv *c, struct err *e); /* sizes, eps, rope base, context length */

extern const struct conv_family conv_qwen3, conv_dflash;
extern const struct conv_family *const conv_families[]; /* ends with NULL */

/* convert_gguf.c: the input is a GGUF. */
int convert_from_gguf(const struct convert *o, struct err *e);

#endif
