/* random_models.h - models of random weights for tests of streams: of a folder's config to a file, and read
 * again; what the config of a drafter of such a target says. */
#ifndef TEST_RANDOM_MODELS_H
#define TEST_RANDOM_MODELS_H

#include "../model/family_fixture.h"
#include "../streams.h"

static const struct pair drafter_parts[] = {
    {"block_size", "6"},
    {"dflash_config", "{\"mask_token_id\": 8, \"target_layer_ids\": [0, 2]}"},
    {"num_target_layers", NULL},
    {"vocab_size", "9"},
    {NULL, NULL},
};

static inline void random_file(const char *dir, const char *path, uint64_t seed, enum quant_recipe type,
                               enum convert_mtp mtp)
{
    struct convert o = options(dir);
    o.output = path;
    o.random = true;
    o.seed = seed;
    o.type_given = true;
    o.type = type;
    o.mtp = mtp;
    convert_ok(&o);
}

/* Of dir, as dir.gguf. */
static inline struct model *random_model(struct kn_backend *be, const char *dir, uint64_t seed,
                                         enum quant_recipe type, enum convert_mtp mtp)
{
    struct err e = {0};
    struct model *m;
    char path[64];
    snprintf(path, sizeof path, "%s.gguf", dir);
    random_file(dir, path, seed, type, mtp);
    must(model_load(&m, path, be, NULL, NULL, NULL, &e), &e);
    return m;
}

#endif
