/* tokenizer_import.h - the inside of the importer: what is read of tokenizer.json and the files beside it
 * before it becomes keys. Shared by tokenizer_import.c (byte-level BPE, special tokens, the keys) and
 * tokenizer_import_spm.c (what SentencePiece-style vocabularies have instead). */
#ifndef DFLASH_TOKENIZER_IMPORT_H
#define DFLASH_TOKENIZER_IMPORT_H

#include "../describe/desc.h"
#include "../base/json.h"
#include "tokenizer_priv.h"

#define TOK_MAX_STOP (DESC_MAX_STOPS - 2) /* eos and eot may be others */

struct tok_import {
    json_t *j[4];
    json_t *vocab; /* of the model, borrowed */
    json_t *added; /* array, borrowed; may be NULL */
    struct tok_spec spec;
    bool spm; /* model.byte_fallback: a SentencePiece-style vocabulary */
    struct gguf_str *token, *merge;
    int32_t *type;
    int32_t template_bos; /* the token that post_processor puts first, or -1 */
    int32_t eos, pad, eot;
    int32_t stop[TOK_MAX_STOP];
    size_t n_stop;
    struct arena *arena;
};

/* ERR_FORMAT: what is got, and is not supported; returns -1. */
int tok_hf_bad(struct err *e, const char *what, const char *expected, const json_t *got);
bool tok_hf_null(const json_t *v);        /* absent or null */
const char *tok_hf_type(const json_t *v); /* its member "type", or "" */
int tok_hf_only_keys(const json_t *o, const char *where, const char *const *known, struct err *e);
/* Absent, null or false. */
int tok_hf_off(const json_t *o, const char *where, const char *key, struct err *e);

/* The three parts in which a vocabulary with byte_fallback differs; they set the kind and space_prefix. */
int tok_hf_spm_normalizer(struct tok_import *m, const json_t *v, struct err *e);
int tok_hf_spm_pre_tokenizer(const json_t *v, struct err *e);
int tok_hf_spm_decoder(const struct tok_import *m, const json_t *v, struct err *e);
/* "<0xXX>" of model.vocab become byte tokens. */
void tok_hf_spm_types(struct tok_import *m);
/* tokenizer.ggml.model and the keys that only these kinds have. t: built from m->spec. */
int tok_hf_spm_keys(const struct tok_import *m, const struct tokenizer *t, struct gguf_writer *w,
                    struct err *e);

#endif
