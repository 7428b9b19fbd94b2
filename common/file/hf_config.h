/* hf_config.h - a Hugging Face config.json, read so that nothing in it is passed over in silence.
 *
 * A value is asked for by its path ("rope_theta", "dflash_config.mask_token_id") and every path asked for is
 * remembered. When a family has taken what it needs, hf_config_rest goes through all that is left: a key must
 * be known as harmless, or known with the values under which the forward pass is the one that is implemented,
 * or it is an error naming it. A key whose value is null counts as absent, as in the reference
 * implementation. Strings that are handed out live until hf_config_free. */
#ifndef DFLASH_HF_CONFIG_H
#define DFLASH_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/err.h"

struct hf_config;

#define HF_CONFIG_MAX_BYTES (16u << 20)

/* Read a file of at most HF_CONFIG_MAX_BYTES. ERR_FORMAT: no JSON object; ERR_IO. */
int hf_config_open(struct hf_config **c, const char *path, struct err *e);
/* The same over text; name is for messages. */
int hf_config_parse(struct hf_config **c, const char *text, size_t n, const char *name, struct err *e);
void hf_config_free(struct hf_config *c);
const char *hf_config_name(const struct hf_config *c);

/* Getters. 0: *v is set; 1: absent or null, *v untouched; -1: another type or out of range, e names path,
 * expected, got. A number with a fraction is no integer; an integer is a number. */
int hf_get_i64(struct hf_config *c, const char *path, int64_t min, int64_t max, int64_t *v, struct err *e);
int hf_get_f64(struct hf_config *c, const char *path, double *v, struct err *e);
int hf_get_bool(struct hf_config *c, const char *path, bool *v, struct err *e);
int hf_get_str(struct hf_config *c, const char *path, const char **v, struct err *e);
/* A list of at most cap integers or strings. one_ok: a single value counts as a list of one. */
int hf_get_i32_list(struct hf_config *c, const char *path, bool one_ok, int32_t *v, int cap, int *n,
                    struct err *e);
int hf_get_str_list(struct hf_config *c, const char *path, const char **v, int cap, int *n, struct err *e);
/* Present and not null; does not count as asked for. */
bool hf_has(const struct hf_config *c, const char *path);
/* The same of a string: NULL where there is none. */
const char *hf_peek_str(const struct hf_config *c, const char *path);

/* The path of the first key, at top level or one level down, whose name holds part; NULL if there is none.
 * Its text is in buf. */
const char *hf_key_with(const struct hf_config *c, const char *part, char *buf, size_t n);

/* The first of several places (NULL-terminated) that holds the value; *where becomes its path. Two places
 * that both hold it and disagree are an error naming both. Return as the getters. */
int hf_find_i64(struct hf_config *c, const char *const *paths, int64_t min, int64_t max, int64_t *v,
                const char **where, struct err *e);
int hf_find_f64(struct hf_config *c, const char *const *paths, double *v, const char **where, struct err *e);
int hf_find_bool(struct hf_config *c, const char *const *paths, bool *v, const char **where, struct err *e);
int hf_find_i32_list(struct hf_config *c, const char *const *paths, int32_t *v, int cap, int *n,
                     const char **where, struct err *e);

/* The rotation. partial, factor, ... stand where the config has them and allow admits them. */
struct hf_rope {
    double theta;
    const char *type;                   /* "default", "llama3" or "proportional" */
    double partial;                     /* partial_rotary_factor, 1 where absent */
    double factor, low_freq, high_freq; /* of llama3 */
    double original;                    /* original_max_position_embeddings, of llama3 */
};
#define HF_ROPE_LLAMA3 1u       /* rope_type "llama3" and its four numbers */
#define HF_ROPE_PARTIAL 2u      /* partial_rotary_factor other than 1 */
#define HF_ROPE_PROPORTIONAL 4u /* rope_type "proportional", with a partial_rotary_factor */
/* rope_parameters (flat, or by layer type: that of layer_type; NULL: then all types must agree), else
 * rope_theta at top level and rope_scaling; where several are present they must agree. What allow does not
 * admit, and any further key, is an error naming it. *where becomes the place of theta. Return as the
 * getters. */
int hf_get_rope(struct hf_config *c, const char *layer_type, unsigned allow, struct hf_rope *r,
                const char **where, struct err *e);
/* Its base alone, of the default rotation: allow 0. */
int hf_get_rope_theta(struct hf_config *c, double *theta, const char **where, struct err *e);

/* A text model inside another one's config: from now on every path is looked for in the object at key first,
 * then at top level; hf_config_rest goes over both. 0, or -1 where there is no such object. */
int hf_config_nest(struct hf_config *c, const char *key, struct err *e);

/* What may be left in a config. accept NULL: any value is harmless. Else a JSON list of the values that are:
 * any other one changes the forward pass and is an error saying so. An object is matched whole, or key by key
 * through its paths. */
struct hf_rule {
    const char *path; /* NULL ends a table */
    const char *accept;
};
/* tables: NULL-terminated array of rule tables. 0, or -1 with the first key that is neither asked for nor in
 * a table. */
int hf_config_rest(struct hf_config *c, const struct hf_rule *const *tables, struct err *e);
/* Keys that Hugging Face writes into every config and that say nothing about the forward pass. */
extern const struct hf_rule hf_rules_common[];

#endif
