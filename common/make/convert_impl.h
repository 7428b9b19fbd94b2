/* convert_impl.h - what the files of the converter share: a family's tables, and a conversion under way.
 *
 * A new family is one file with a struct conv_family and one line in the list of convert.c. Its table of
 * rules says which tensor of the checkpoint becomes which one of the GGUF; what happens to it on the way are
 * flags of the rule (values, squeezed dimensions, stacked experts) and two hooks of the family (order of rows
 * and of columns). The same table serves inspect --diff, which reads a checkpoint's tensors as the GGUF would
 * hold them. */
#ifndef DFLASH_CONVERT_IMPL_H
#define DFLASH_CONVERT_IMPL_H

#include "convert.h"
#include "../describe/desc.h"
#include "../file/gguf.h"
#include "../file/hf_config.h"
#include "../file/safetensors.h"

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
    DIM_EXPERTS,  /* number of experts */
    DIM_FFX,      /* width of one expert */
    DIM_FFX2,     /* twice that: gate and up in one */
    DIM_FFS,      /* width of the shared expert */
    DIM_Q2,       /* 2 * n_head * head_dim: [q | gate] a head */
    DIM_WIDTH,    /* delta nets: 2 n_k d_k + n_v d_v */
    DIM_VALUE,    /* n_v * d_v */
    DIM_N_V,      /* value heads */
    DIM_D_V,      /* size of one */
    DIM_CONV,     /* taps of the short convolution */
    DIM_Q_FULL,   /* as DIM_Q, DIM_KV, DIM_HEAD, of full layers where sliding ones have another shape */
    DIM_KV_FULL,
    DIM_HEAD_FULL,
    DIM_ROT,         /* pairs of a rope set with divisors */
    DIM_SIDES,       /* DFlash2: 2, before and after a part of a layer */
    DIM_CONV_PROJ,   /* DFlash2: 2 * taps of the convolution * groups of channels */
    DIM_SELECT,      /* DFlash2: rank of the candidate selector */
    DIM_VOCAB_DRAFT, /* rows of a drafter's own head: of a reduced vocabulary, else of the whole */
    DIM_RANK,        /* DSpark: of the Markov head */
    DIM_RANK3,       /* 3 times that */
    DIM_GATE_IN,     /* width of the stream and the rank */
    DIM_JOINT_IN,    /* the same and the rank again */
    DIM_CONF_IN,     /* of the confidence's input */
    DIM_STATE,       /* Domino: of the recurrent state */
    DIM_STATE3,      /* 3 times that */
    DIM_STATE_IN,    /* width of the stream and the state */
    DIM_CORRECT,     /* between the two products of a correction */
    DIM_ONE,         /* 1 */
    DIM_TARGET,      /* assistants: width of the target, and twice that */
    DIM_TARGET2,
    DIM_CLUSTERS, /* assistants: clusters of the vocabulary */
    DIM_HEADS,    /* n_head, where a tensor has one number a head */
    DIM_EMBD2,    /* MTP: 2 * width of the residual stream */
    DIM_COUNT,
};

/* ---- flags of a rule ---- */
#define CONV_OPTIONAL 0x1u /* the tensor may be absent */
#define CONV_HEAD 0x2u  /* the output matrix: dropped where the config ties it to the embedding it copies */
#define CONV_EMBED 0x4u /* the embedding */
/* the rule before gives the same tensor in another spelling: one of them is there, and not two */
#define CONV_ALT 0x8u
/* hf holds a second "%d", the expert: [n_expert] tensors of shape dim[1..] are stacked along dim[0],
 * DIM_EXPERTS */
#define CONV_STACK 0x10u
/* the source's last dimension but one is twice as long: the first, or the second
 * half of it (in every matrix) */
#define CONV_HALF_1 0x20u
#define CONV_HALF_2 0x40u
#define CONV_SQUEEZE 0x80u   /* dimensions of 1 in the source do not count */
#define CONV_PLUS_ONE 0x100u /* x + 1, in float32 */
#define CONV_NEG_EXP 0x200u  /* -exp(x), in float32 */
#define CONV_ROWS 0x400u     /* rows are reordered: the family's row hook, within one matrix */
#define CONV_COLS 0x800u     /* columns (elements of a vector) are: the family's col hook */
#define CONV_MADE 0x1000u    /* not in the checkpoint: the family's make hook computes it, or leaves it out */
#define CONV_AROUND_0 0x2000u /* random weights: a vector around 0 instead of 1 */
/* integers: differences from their own places, which the output holds as ids, in I64 */
#define CONV_IDS 0x4000u
#define CONV_STORED 0x8000u /* optional, and random weights have none of it */
/* Of a block behind the others that predicts further tokens: a layer's number counts those, and in the output
 * those before too. Written where conv.n_mtp says so */
#define CONV_MTP 0x10000u
#define CONV_ORDER 0x2000000u /* integers: ids in an order, which the output holds in I32 */
/* Only in layers of these kinds (conv.kind, set by the family's kinds hook; what
 * the bits mean is its own). */
#define CONV_KIND(mask) ((unsigned)(mask) << 17)

/* One tensor of a family, or one a layer where the names hold "%d". hf is written without the prefixes
 * "model.", "language_model.", "model.language_model.", "language_model.model.", which are accepted. dim: in
 * PyTorch order, [out, in] or [n] or [n_expert, out, in], as the GGUF has it. Rules are listed in the order
 * of the output; consecutive rules a layer make one group, written layer by layer. */
struct conv_rule {
    const char *hf, *gguf;
    enum conv_dim dim[3];
    unsigned flags;
};

/* What several families name alike: of a layer, everything before the feed-forward, with norms of heads, and
 * the feed-forward; what ends a target. */
#define CONV_ATTENTION_RULES                                                                                 \
    {"layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", {DIM_EMBD}, 0},                          \
        {"layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q, DIM_EMBD}, 0},                 \
        {"layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", {DIM_HEAD}, 0},                   \
        {"layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, 0},                \
        {"layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", {DIM_HEAD}, 0},                   \
        {"layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV, DIM_EMBD}, 0},                \
        {"layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, 0},            \
    {                                                                                                        \
        "layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", {DIM_EMBD}, 0                 \
    }
#define CONV_FFN_RULES                                                                                       \
    {"layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", {DIM_FF, DIM_EMBD}, 0},                     \
        {"layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", {DIM_FF, DIM_EMBD}, 0},                     \
    {                                                                                                        \
        "layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", {DIM_EMBD, DIM_FF}, 0                    \
    }
#define CONV_END_RULES                                                                                       \
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},                                                    \
    {                                                                                                        \
        "lm_head.weight", "output.weight", {DIM_VOCAB, DIM_EMBD}, CONV_OPTIONAL | CONV_HEAD                  \
    }

/* The experts of a layer, apart or fused; at: the name up to "experts." with its dot. */
#define CONV_EXPERT_RULES_OF(at, more)                                                                       \
    {at "%d.gate_proj.weight",                                                                               \
     "blk.%d.ffn_gate_exps.weight",                                                                          \
     {DIM_EXPERTS, DIM_FFX, DIM_EMBD},                                                                       \
     CONV_STACK | (more)},                                                                                   \
        {at "gate_up_proj",                                                                                  \
         "blk.%d.ffn_gate_exps.weight",                                                                      \
         {DIM_EXPERTS, DIM_FFX, DIM_EMBD},                                                                   \
         CONV_ALT | CONV_HALF_1 | (more)},                                                                   \
        {at "%d.up_proj.weight",                                                                             \
         "blk.%d.ffn_up_exps.weight",                                                                        \
         {DIM_EXPERTS, DIM_FFX, DIM_EMBD},                                                                   \
         CONV_STACK | (more)},                                                                               \
        {at "gate_up_proj",                                                                                  \
         "blk.%d.ffn_up_exps.weight",                                                                        \
         {DIM_EXPERTS, DIM_FFX, DIM_EMBD},                                                                   \
         CONV_ALT | CONV_HALF_2 | (more)},                                                                   \
        {at "%d.down_proj.weight",                                                                           \
         "blk.%d.ffn_down_exps.weight",                                                                      \
         {DIM_EXPERTS, DIM_EMBD, DIM_FFX},                                                                   \
         CONV_STACK | (more)},                                                                               \
    {                                                                                                        \
        at "down_proj", "blk.%d.ffn_down_exps.weight", {DIM_EXPERTS, DIM_EMBD, DIM_FFX}, CONV_ALT | (more)   \
    }
#define CONV_EXPERT_RULES(at) CONV_EXPERT_RULES_OF(at, 0)

/* A tensor or key that belongs to a relative which is not supported, or to a part that is left out: part of a
 * name (conv_family.skip: the start of a name), and what it is. */
struct conv_relative {
    const char *part, *name;
};

struct conv;
struct conv_tensor;
struct conv_family {
    const char *hf;        /* architectures[0] in config.json */
    const char *projector; /* dflash_config.projector_type where architectures[0] is another drafter's; may be
                              NULL */
    const char *hf_nested; /* the same with the text model's keys in text_config; may be NULL */
    const char *arch;      /* general.architecture; key prefix */
    bool drafter;          /* conditioned on a target; may come without config.json */
    const struct conv_rule *rules;         /* ends with hf NULL */
    const struct hf_rule *config;          /* beside hf_rules_common */
    const struct conv_relative *relatives; /* ends with part NULL, or NULL */
    const struct conv_relative *skip;      /* tensors whose name starts so (after "model.") are left out and
                                              listed;      ends with part NULL, or NULL */
    const char
        *rope_layers; /* whose set under rope_parameters is c->rope and rope.freq_base; NULL: all agree */
    unsigned rope;    /* HF_ROPE_*: rotations beside the default that the family knows */
    const char *signature; /* drafters: a tensor that only this family has, for files without config.json */
    const char *act_key,
        *act; /* the key of the activation and its value, for messages; NULL: hidden_act, silu */
    /* config.json's keys of the head size and of the key heads; NULL: head_dim, num_key_value_heads */
    const char *head_key, *kv_key;
    /* Hooks; each may be NULL but keys. */
    int (*parts)(struct conv *c, struct err *e); /* before the shapes: read what they cannot say */
    int (*kinds)(struct conv *c, struct err *e); /* fill kind[0 .. n_layer) */
    int (*sizes)(struct conv *c, struct err *e); /* random: dims that conv_sizes_from_config does not set */
    int (*heads)(struct conv *c, struct err *e); /* in place of conv_heads */
    /* t->made = mem_alloc'ed values; left NULL: there is no such tensor in this model */
    int (*make)(struct conv *c, struct conv_tensor *t, struct err *e);
    /* Row (column) of the source for row (column) i of the output, for rules with CONV_ROWS (CONV_COLS). */
    int64_t (*row)(const struct conv *c, const struct conv_rule *r, int64_t i);
    int64_t (*col)(const struct conv *c, const struct conv_rule *r, int64_t i);
    int (*keys)(struct conv *c,
                struct err *e); /* after the shapes: check, and put the family's own GGUF keys */
    int (*finish)(struct conv *c, struct err *e); /* with all keys put, before anything is written */
};

/* One tensor of the output. */
struct conv_tensor {
    const struct conv_rule *rule;
    int32_t layer; /* -1: not of a layer */
    char name[64];
    const struct st_tensor *src;   /* NULL: random or made. Stacked: of expert 0 */
    const struct st_tensor **part; /* stacked: [n_expert], else NULL */
    float *made;                   /* CONV_MADE: the values, else NULL */
    uint32_t n_dims, from, to; /* types; from of a source that GGUF has no type for (F8, F64) or whose values
                                  change: KN_F32 */
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
    int64_t conv_kernel, conv_group, selector_k; /* DFlash2 */
    bool has_scale, has_softcap, has_multiplier;
    double value_scale; /* 0: none */
    bool gemma4;    /* its blocks, and then the class's own scale and no cap where config.json is silent */
    bool tokenizer; /* in the file */
    const char *kind, *pieces; /* of a relative, for messages; NULL: a DFlash drafter */
    bool own_embed, own_head, own_tied;
    /* DSpark: what config.json says; -1: nothing */
    int markov, confidence, confidence_markov;
    bool from_anchor;
    /* Domino */
    bool shift_label;
    int64_t pure_prefix;
};

struct conv {
    const struct convert *o;
    const struct conv_family *fam;
    const struct dialect *dialect; /* drafters: to write */
    bool nested;                   /* the text model's keys are in text_config */
    char *dir;                     /* directory of config.json and tokenizer.json, NULL if none */
    char *label;                   /* input, for messages */
    struct hf_config *cfg;         /* NULL: no config.json */
    struct hf_config *gen;         /* generation_config.json or NULL */
    struct st *st;                 /* NULL: random */
    struct gguf_writer *w;
    struct conv_target target;
    struct conv_drafter d;

    int64_t dim[DIM_COUNT];
    char dim_from[DIM_COUNT][128]; /* the tensor or key that set it */
    int32_t n_layer, n_head, n_head_kv, head_dim;
    int32_t layer_kv[DESC_MAX_LAYERS]; /* key heads a layer, where they differ; else all 0 */
    uint8_t kind[DESC_MAX_LAYERS];     /* what CONV_KIND looks at */
    int32_t n_mtp;                     /* blocks behind n_layer that predict further tokens */
    bool mtp_alone;                    /* the checkpoint holds no other blocks */
    int32_t n_k, n_v, d_k, d_v;        /* delta nets, set by their family */
    struct hf_rope rope; /* the checkpoint's rotation, where the family reads more than a base */
    int64_t n_ctx;
    int64_t n_vocab; /* rows of the embedding; of a drafter: what config.json says, 0 if nothing */
    double rms_eps, rope_theta;
    bool tied;

    struct conv_tensor *t;
    int64_t n_t;
};

bool conv_has_mtp(const struct conv_family *f);
void conv_say(const struct conv *c, enum convert_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* convert_shape.c: tensors to sizes. */
/* Random: config.json's sizes, where no tensor says them. */
int conv_sizes_from_config(struct conv *c, struct err *e);
int conv_expert_sizes(struct conv *c, struct err *e); /* a sizes hook: number of experts and their width */
int conv_set_dim(struct conv *c, enum conv_dim d, int64_t v, const char *from); /* returns 0 */
/* Of a proportional rotation (c->rope) of heads of a size, the divisors [head / 2] of its frequencies into
 * t->made: 1 for the share of pairs that turns, for the others one so large that the angle is none (the
 * ecosystem's 1e30). from: where DIM_ROT is from; of: of which layers, for the detail. */
int conv_make_divisors(struct conv *c, struct conv_tensor *t, int64_t head, const char *from, const char *of,
                       struct err *e);
/* A size that config.json must say (random), and one that it may say but must then say have. */
int conv_need_i64(struct conv *c, const char *key, int64_t *v, struct err *e);
int conv_witness(struct conv *c, const char *key, int64_t have, const char *from, struct err *e);
/* Fills t, dim, n_layer; every tensor of the input is accounted for. */
int conv_map_tensors(struct conv *c, struct err *e);
/* Sets head_dim, n_head, n_head_kv; checks all sizes with config.json. */
int conv_heads(struct conv *c, struct err *e);

/* convert.c: as far as conv_map_tensors and the heads, for a checkpoint that is only read. 1: there is no
 * config.json and no tensor tells the family. conv_close frees what both this and a conversion take. */
int conv_open(struct conv **c, const struct convert *o, struct err *e);
void conv_close(struct conv *c);

/* convert_data.c: from slabs of the source, or random, to the output. */
int conv_plan_types(struct conv *c, struct err *e, uint32_t *file_type);
int conv_write_tensors(struct conv *c, struct gguf_files *out, struct err *e);
/* Rows row0 .. row0 + n of all matrices of t as the output has them, as float32 at dst [n, ne[0]]. */
int conv_read_rows(const struct conv *c, const struct conv_tensor *t, int64_t row0, int64_t n, float *dst,
                   struct err *e);

/* convert_random.c: n_rows rows of ne[0] elements of tensor t from row row0 on, in type t->to, at dst. The
 * bytes depend on seed, the tensor's name and the position alone. */
int conv_random_rows(uint64_t seed, const struct conv_tensor *t, int64_t row0, int64_t n_rows, void *dst,
                     int threads, struct err *e);

/* Put arch-prefixed keys. */
int conv_put_u32(struct conv *c, const char *key, int64_t v, struct err *e);
int conv_put_f32(struct conv *c, const char *key, double v, struct err *e);
int conv_put_bool(struct conv *c, const char *key, bool v, struct err *e);
int conv_put_str(struct conv *c, const char *key, const char *v, struct err *e);
int conv_put_common(struct conv *c, struct err *e); /* sizes, eps, rope base, context length */
/* expert_count, expert_used_count, expert_feed_forward_length; used_key: config.json's key of the second. */
int conv_put_experts(struct conv *c, const char *used_key, struct err *e);

/* convert_norm.c: the key that says which target a drafter is for, where --target has its weights. */
int conv_put_norm_crc(struct conv *c, struct err *e);

/* convert_gemma4.c: what --target does to its own embedding and logits, in *scale (1: nothing) and *cap (0:
 * none). */
int conv_target_ends(const struct conv *c, double *scale, double *cap, struct err *e);

extern const struct conv_family conv_qwen3, conv_qwen3moe, conv_qwen35, conv_qwen35moe, conv_llama,
    conv_gemma4, conv_assistant, conv_dflash, conv_dflash2, conv_dspark, conv_dspark_forge,
    conv_dspark_gemma4, conv_domino;
extern const struct conv_family *const conv_families[]; /* ends with NULL */

/* Where a drafter's config has its parts (hf_find_*). */
struct conv_drafter_paths {
    const char *const *taps, *const *block, *const *mask, *const *causal;
};
extern const struct conv_drafter_paths conv_drafter_paths;

/* The row that --dialect names, else that of the name otherwise; ERR_USAGE for one that is not known. */
int conv_dialect(const struct convert *o, const char *otherwise, const struct dialect **x, struct err *e);
/* What is said to whom --target does not help: to them that convert a target, an MTP block, an assistant. */
#define CONV_NO_TARGET "leave it out; dflash-inspect --pair compares any drafter with its target"
const char *conv_arch(const struct conv *c); /* general.architecture of the output */

/* convert_gguf.c: the input is a GGUF. */
int convert_from_gguf(const struct convert *o, struct err *e);

#endif
