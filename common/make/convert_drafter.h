/* convert_drafter.h - what the conversions of DFlash drafters and their relatives share: the stack, what
 * every config.json of them says, and keys. */
#ifndef DFLASH_CONVERT_DRAFTER_H
#define DFLASH_CONVERT_DRAFTER_H

#include "convert_impl.h"

/* The stack that drafters of the DFlash family have in common. */
#define STACK_BEGINS                                                                                         \
    {"fc.weight", "fc.weight", {DIM_EMBD, DIM_FEATURES}, 0},                                                 \
    {                                                                                                        \
        "hidden_norm.weight", "enc.output_norm.weight", {DIM_EMBD}, 0                                        \
    }
#define STACK_LAYERS CONV_ATTENTION_RULES, CONV_FFN_RULES
/* What a DSpark has beside its stack. */
#define DSPARK_HEADS                                                                                         \
    {"markov_head.markov_w1.weight", "markov_w1.weight", {DIM_VOCAB, DIM_RANK}, CONV_OPTIONAL},              \
        {"markov_head.markov_w2.weight", "markov_w2.weight", {DIM_VOCAB_DRAFT, DIM_RANK}, CONV_OPTIONAL},    \
        {"markov_head.gate_proj.weight", "markov_gate.weight", {DIM_RANK, DIM_GATE_IN}, CONV_OPTIONAL},      \
        {"markov_head.gate_proj.bias", "markov_gate.bias", {DIM_RANK}, CONV_OPTIONAL | CONV_AROUND_0},       \
        {"markov_head.joint_proj.weight", "markov_joint.weight", {DIM_RANK3, DIM_JOINT_IN}, CONV_OPTIONAL},  \
        {"markov_head.joint_proj.bias", "markov_joint.bias", {DIM_RANK3}, CONV_OPTIONAL | CONV_AROUND_0},    \
        {"confidence_head.proj.weight", "conf_proj.weight", {DIM_ONE, DIM_CONF_IN}, CONV_OPTIONAL},          \
        {"confidence_head.proj.bias", "conf_proj.bias", {DIM_ONE}, CONV_OPTIONAL | CONV_AROUND_0},           \
        CONV_OWN_ENDS,                                                                                       \
    {                                                                                                        \
        "d2t", "d2t", {DIM_VOCAB_DRAFT}, CONV_OPTIONAL | CONV_STORED | CONV_IDS                              \
    }
/* Its lists and hooks (convert_dspark.c), of any blocks. */
extern const struct conv_relative conv_dspark_relatives[], conv_dspark_skip[];
int conv_dspark_parts(struct conv *c, struct err *e);
int conv_dspark_sizes(struct conv *c, struct err *e);
int conv_dspark_keys(struct conv *c, struct err *e);

/* What a config may hold beside what is asked for. */
extern const struct hf_rule conv_drafter_config[];

/* Hooks of a family (convert_impl.h): the parts that every drafter has, its keys, and whether the dialect has
 * a place for all of it (c->d.kind and pieces name a relative's). */
int conv_drafter_parts(struct conv *c, struct err *e);
int conv_drafter_keys(struct conv *c, struct err *e);
int conv_drafter_finish(struct conv *c, struct err *e);
/* Behind the keys: the logits have no scale of their own, which this kind is not known to go with. */
int conv_no_multiplier(const struct conv *c, struct err *e);

/* convert_ends.c: an embedding and a head of the drafter's own. Rules for both, whose rows are DIM_VOCAB and
 * DIM_VOCAB_DRAFT. */
#define CONV_OWN_ENDS                                                                                        \
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_OPTIONAL | CONV_STORED},        \
    {                                                                                                        \
        "lm_head.weight", "output.weight", {DIM_VOCAB_DRAFT, DIM_EMBD}, CONV_OPTIONAL | CONV_STORED          \
    }
/* Leave out those that are the target's, where --target has its weights; say what is kept. With the keys. */
int conv_own_ends(struct conv *c, struct err *e);

#endif
