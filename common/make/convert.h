/* convert.h - a Hugging Face checkpoint into a GGUF that says all of what its forward pass needs, or an
 * error.
 *
 * A family is a table (convert_llama.c, convert_dflash.c): the tensors with their names and symbolic shapes,
 * the config keys with what is done about each, and a function that writes the family's GGUF keys. Sizes come
 * from the tensors' shapes, are checked against config.json and against the target, and are never taken from
 * the target. Tensor data streams through in slabs: memory stays bounded whatever the model's size. Tensor
 * order and bytes depend on the input alone. What is written: docs/drafter.md, docs/targets.md and
 * docs/dflash-convert.1. */
#ifndef DFLASH_CONVERT_H
#define DFLASH_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/err.h"
#include "quantize.h"

#define CONVERT_MAX_TAPS 64

enum convert_level { CONVERT_DETAIL, CONVERT_NOTE, CONVERT_WARN };

/* Blocks behind the others that predict further tokens. */
enum convert_mtp {
    CONVERT_MTP_FOUND, /* written where the checkpoint has them */
    CONVERT_MTP_KEEP,  /* must be there; random: made */
    CONVERT_MTP_ONLY,  /* and nothing else but what they share with the target: a drafter's file */
    CONVERT_MTP_NONE,
};

struct convert {
    const char *input;   /* directory, .safetensors file, GGUF, or (random) a directory with config.json or a
                            .json file */
    const char *output;  /* NULL or "-": stdout */
    const char *target;  /* drafters: the target's directory or GGUF, or NULL */
    const char *dialect; /* drafters; NULL: of a checkpoint "upstream", of a GGUF its own */
    const char *name;    /* general.name; NULL: the input's own file name */
    bool type_given;
    enum quant_recipe type; /* where !type_given: the type the weights are stored in */
    const struct quant_override
        *override; /* [n_override]: types of tensors by name; the last that matches wins */
    int n_override;
    enum convert_mtp mtp;
    bool random; /* weights from seed, shapes from config.json */
    uint64_t seed;
    uint64_t split; /* bytes of a file at most, where the output is to be several; 0: one */
    bool force;
    int threads; /* 0: as OpenMP decides */

    /* Parts of a drafter; 0 or negative where not given. They win over config.json, with a warning where it
     * disagrees. */
    double rope_theta, rms_eps;
    int32_t n_head, n_head_kv;
    int32_t block_size, mask_id, n_ctx;
    int32_t n_taps, taps[CONVERT_MAX_TAPS];

    /* How a drafter's GGUF is to be read, and which of its parts are other ones. The parts above are taken
     * from the fields above. */
    const char *from_dialect;
    bool has_tap_shift;
    int32_t tap_shift;
    int32_t sliding_window;      /* 0: as the file says */
    const char *sliding_pattern; /* NULL: as the file says */
    int32_t causal;              /* -1: as the file says; 0, 1 */

    void (*say)(void *ctx, enum convert_level level,
                const char *text);                              /* one line, no newline; may be NULL */
    void (*progress)(void *ctx, uint64_t done, uint64_t total); /* bytes of tensor data; may be NULL */
    void *ctx;
};

/* All the unset values above. */
void convert_defaults(struct convert *o);
int convert_run(const struct convert *o, struct err *e);

/* The GGUF name (dialect upstream) of a Hugging Face tensor, with or without "model.": 0, or -1 where no
 * table has it. */
int convert_gguf_name(const char *hf, char *out, size_t n);

#endif
