/* desc.h - what a model file says, as one internal description, whatever dialect it was written in.
 *
 * A description is read from a GGUF's keys and tensor shapes and checked whole: a missing or unknown part is
 * an error naming the key, what was expected and what was found; nothing is defaulted. convert writes what
 * desc_read reads. */
#ifndef DFLASH_DESC_H
#define DFLASH_DESC_H

#include <stdbool.h>
#include <stdint.h>
#include "err.h"
#include "gguf.h"

enum desc_arch { DESC_QWEN3, DESC_DFLASH };

#define DESC_MAX_LAYERS 1024
#define DESC_MAX_TAPS 64
#define DESC_MAX_STOPS 32

struct desc_layer {
    int32_t window; /* 0: full attention; else keys with row - key < window */
    bool causal;    /* targets: always. Drafters: inside the block */
};

struct desc {
    enum desc_arch arch;
    const char *arch_name;                  /* general.architecture */
    const char *dialect;                    /* drafters: "upstream", ... ; targets: "" */
    const char *fc_name, *hidden_norm_name; /* drafters: tensors as the dialect names them */
    char name[128];                         /* general.name, may be "" */
    int32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff;
    int32_t n_vocab;     /* 0: a drafter that does not say */
    int32_t n_ctx_train; /* 0: not known (a drafter converted without config.json) */
    float rms_eps, rope_theta;
    bool tied_head; /* no output.weight: the embedding is the head */
    struct desc_layer layer[DESC_MAX_LAYERS];
    /* drafters */
    int32_t block_size, mask_id;
    int32_t n_taps,
        taps[DESC_MAX_TAPS]; /* zero-based blocks whose output is tapped, in the order of fc's columns */
    int32_t n_features;      /* width of fc's input = n_taps * the target's n_embd */
    bool causal_inferred;    /* layer[].causal stands neither in the file nor in a flag */
    /* Where has_*; else the target's own. Targets always have a scale. */
    bool has_embedding_scale, has_softcap;
    float embedding_scale, softcap;
    /* tokenizer and stopping, where the file has them; ids, -1 if absent */
    int32_t bos_id, eos_id;
    int32_t n_stops, stops[DESC_MAX_STOPS]; /* union of eos, eot and generation_config's list */
    int32_t n_tokens;                       /* of the file's tokenizer, 0 if none */
    bool add_bos, has_tokenizer;
    uint32_t tokenizer_crc; /* crc32 over tokens and merges, 0 if none */
    uint8_t identity[16];   /* of the file: over its keys, tensor infos and samples of every tensor's data */
};

/* Flags that override or supply drafter parts; -1 / 0 / NULL where not given. */
struct desc_override {
    int32_t draft_causal; /* -1: as the file says; 0, 1: force every layer */
};

int desc_read(struct desc **d, const struct gguf *g, const struct desc_override *o, struct err *e);
void desc_free(struct desc *d);
/* Do they fit: hidden size x taps = fc's width, taps in range, vocabulary, mask id, embedding width. First
 * misfit is the error. */
int desc_pair(const struct desc *target, const struct desc *drafter, struct err *e);

#endif
