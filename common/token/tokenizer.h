/* tokenizer.h - byte-level BPE from a GGUF's own vocabulary, and the way from tokenizer.json into a GGUF.
 *
 * Any byte sequence survives encode then decode up to the normalisation that the model asks for: valid UTF-8
 * is normalised (NFC where tokenizer.ggml.normalizer says "nfc", or, where that key is absent, for the
 * pre-tokenizers qwen2 and qwen35), invalid bytes pass verbatim. Keys and pre-tokenizers: docs/tokenizer.md.
 */
#ifndef DFLASH_TOKENIZER_H
#define DFLASH_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/err.h"
#include "../file/gguf.h"

struct tokenizer;
/* Does this tokenizer.ggml.model say that there is none: "none", or "no_vocab", as engines write it. */
bool tok_is_none(struct gguf_str model);
/* ERR_FORMAT naming the key where the vocabulary is missing, not byte-level BPE, or its pre-tokenizer is not
 * known. */
int tok_open(struct tokenizer **t, const struct gguf *g, struct err *e);
void tok_close(struct tokenizer *t);
int32_t tok_n_vocab(const struct tokenizer *t);
int32_t tok_bos(const struct tokenizer *t); /* -1 if none */
bool tok_add_bos(const struct tokenizer *t);
int tok_is_special(const struct tokenizer *t, int32_t id); /* control or user-defined token */

/* The bytes that an id stands for, *n of them, also of control tokens. *written: decoding writes them,
 * special or not (then control and unused tokens are left out). id is in the vocabulary. */
const uint8_t *tok_piece(const struct tokenizer *t, int32_t id, size_t *n, bool *written);

int32_t tok_special_id(const struct tokenizer *t, const char *text); /* of that text, or -1 */

/* Streaming encoder: bytes in, ids out. special: text of control tokens becomes their id (else it is plain
 * text); text of user-defined tokens always does, as everywhere in the ecosystem. normalize: as the model
 * asks (false: never). The ids of a stream do not depend on how its bytes were cut into pieces. end: the text
 * ends with these bytes; the encoder can then take a new text. ids are valid during the callback only. After
 * a failure only free is legal. */
struct tok_encoder;
enum tok_special {
    TOK_SPECIAL_NOT = 0,  /* user-defined tokens only, as everywhere in the ecosystem */
    TOK_SPECIAL_ALL = 1,  /* control tokens too */
    TOK_SPECIAL_CHAT = 2, /* somebody's words in a chat: user-defined ones, but not those that begin with "<|"
                             or end with "|>", which other files of the same family declare control tokens */
};
int tok_encoder_new(struct tok_encoder **x, const struct tokenizer *t, enum tok_special special,
                    bool normalize, struct err *e);
void tok_encoder_free(struct tok_encoder *x);
typedef int (*tok_ids_fn)(void *ctx, const int32_t *ids, size_t n, struct err *e);
int tok_encode(struct tok_encoder *x, const void *bytes, size_t n, bool end, tok_ids_fn out, void *ctx,
               struct err *e);

/* From here on tokens are found as special says. No token and no character reaches across this place, but the
 * text goes on: the ids are those of the whole text, but for that. */
int tok_encoder_special(struct tok_encoder *x, enum tok_special special, tok_ids_fn out, void *ctx,
                        struct err *e);

/* Streaming decoder: ids in, bytes out; an incomplete UTF-8 sequence is held back until it is complete,
 * proves invalid, or the stream ends. An id outside the vocabulary is ERR_FORMAT naming it and its index;
 * what came before it has been written. special: control and unused tokens are written as their text (else
 * left out). end as above. */
struct tok_decoder;
int tok_decoder_new(struct tok_decoder **x, const struct tokenizer *t, bool special, struct err *e);
void tok_decoder_free(struct tok_decoder *x);
typedef int (*tok_bytes_fn)(void *ctx, const void *bytes, size_t n, struct err *e);
int tok_decode(struct tok_decoder *x, const int32_t *ids, size_t n, bool end, tok_bytes_fn out, void *ctx,
               struct err *e);

/* Put the tokenizer.ggml.* keys of dir/tokenizer.json (with tokenizer_config.json, generation_config.json,
 * config.json for special ids where present) into w. n_vocab: rows of the embedding; the vocabulary is padded
 * to it with unused tokens (0: as many as the file has). *found = false and 0 if dir holds no tokenizer.json.
 * Anything in the file that changes tokenization and is not known is ERR_FORMAT naming it. */
int tok_import(struct gguf_writer *w, const char *dir, int64_t n_vocab, bool *found, struct err *e);
/* Copy every tokenizer.ggml.* key of g into w (drafters carry their target's tokenizer, or what it says of
 * having none). *found as above. */
int tok_copy(struct gguf_writer *w, const struct gguf *g, bool *found, struct err *e);

#endif
