/* show.h - how inspect writes: for people, and as JSON lines ("schema": 1, "kind" names the line). */
#ifndef DFLASH_INSPECT_SHOW_H
#define DFLASH_INSPECT_SHOW_H

#include <jansson.h>
#include <stdbool.h>
#include "../../common/inspect/check.h"
#include "../../common/describe/desc.h"
#include "../../common/inspect/diff.h"
#include "../../common/file/gguf.h"
#include "../../common/file/safetensors.h"

/* s as a terminal may have it (common/base/text.h). Good until four more; 4,095 bytes at most. */
const char *show_text(const char *s);
/* The whole value of one key: text as it is, an array an element a line. ERR_NEGATIVE: the file has no such
 * key.
 */
int show_one_key(const struct gguf *g, const char *key, bool json, struct err *e);
/* Every token of its tokenizer: id, kind, piece. ERR_FORMAT: it has none. */
int show_tokens(const struct gguf *g, bool json, struct err *e);
void show_gguf(const struct gguf *g, const char *path, bool tensors, bool json);
void show_safetensors(const struct st *s, const char *path, bool tensors, bool json);
void show_json_finding(const struct check_finding *f);
void show_json_pair_finding(const struct check_finding *f); /* levels ok, note, misfit; expected, found */
void show_json_line(json_t *line);                          /* which it frees; NULL: nothing is printed */
/* Of a drafter (nothing of other files): how its file was understood, or why it was not. -1 with e only where
 * the flags are wrong or memory is short. */
int show_drafter(const struct gguf *g, const struct desc_override *o, bool json, struct err *e);

/* state.c. A saved state: is it one; which models it wants and what it holds; its sections and checksums, as
 * the examinations of check.h. */
bool show_is_state(const char *path);
int show_state(const char *path, bool json, struct err *e);
int check_state(const char *path, check_fn fn, struct err *e);
/* The identity that states name a model's file by; nothing where it is no model. */
int show_identity(const struct gguf *g, bool json, struct err *e);

struct show_diff {
    bool json, tensors; /* tensors: identical ones too */
    float tolerance;    /* < 0: none */
    int above;          /* counted: tensors above it */
};
void show_diff_key(void *ctx, const struct diff_key *k);
void show_diff_tensor(void *ctx, const struct diff_tensor *t);
void show_diff_total(const struct show_diff *d, const struct diff_total *t);

#endif
