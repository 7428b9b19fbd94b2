/* fuzz_tokenizer_json.c - the importer over any text: as tokenizer.json, and behind it (after a NUL byte
 * each) tokenizer_config.json, generation_config.json, config.json and chat_template.jinja; what is good is
 * imported again for models of other vocabulary sizes. Nothing may crash, leak, or fail without a message. */
#include <stdlib.h>
#include <string.h>

#include "../../common/token/tokenizer_priv.h"
#include "json_mutate.h"

const char *const json_words[] = {"version",
                                  "truncation",
                                  "padding",
                                  "added_tokens",
                                  "normalizer",
                                  "normalizers",
                                  "pre_tokenizer",
                                  "pretokenizers",
                                  "post_processor",
                                  "processors",
                                  "decoder",
                                  "decoders",
                                  "model",
                                  "type",
                                  "NFC",
                                  "Sequence",
                                  "ByteLevel",
                                  "add_prefix_space",
                                  "trim_offsets",
                                  "use_regex",
                                  "Split",
                                  "pattern",
                                  "behavior",
                                  "invert",
                                  "Regex",
                                  "Isolated",
                                  "TemplateProcessing",
                                  "single",
                                  "pair",
                                  "A",
                                  "id",
                                  "SpecialToken",
                                  "special_tokens",
                                  "ids",
                                  "tokens",
                                  "BPE",
                                  "dropout",
                                  "unk_token",
                                  "continuing_subword_prefix",
                                  "end_of_word_suffix",
                                  "fuse_unk",
                                  "byte_fallback",
                                  "ignore_merges",
                                  "vocab",
                                  "merges",
                                  "content",
                                  "single_word",
                                  "lstrip",
                                  "rstrip",
                                  "normalized",
                                  "special",
                                  "Replace",
                                  "String",
                                  " ",
                                  "\xe2\x96\x81",
                                  "Prepend",
                                  "prepend",
                                  "ByteFallback",
                                  "Fuse",
                                  "Strip",
                                  "start",
                                  "stop",
                                  "MergedWithPrevious",
                                  "bos_token",
                                  "eos_token",
                                  "pad_token",
                                  "bos_token_id",
                                  "eos_token_id",
                                  "pad_token_id",
                                  "add_bos_token",
                                  "add_eos_token",
                                  "split_special_tokens",
                                  "added_tokens_decoder",
                                  "chat_template",
                                  "default",
                                  "name",
                                  "template",
                                  "text_config",
                                  "0",
                                  "1",
                                  "a b",
                                  "ab",
                                  "a",
                                  "b",
                                  "<s>",
                                  "<|im_end|>",
                                  "<eot>",
                                  "<turn|>",
                                  "<0x41>",
                                  "<end_of_turn>",
                                  "\xc3\xa9",
                                  NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int import(const struct tok_hf *f, int64_t n_vocab)
{
    struct gguf_writer *w = NULL;
    struct err e = {0};
    if (gguf_writer_new(&w, &e)) return -1;
    int rc = tok_import_texts(w, f, n_vocab, &e);
    if (rc && (e.code == ERR_NONE || !e.msg[0])) abort();
    if (!rc && e.code != ERR_NONE) abort();
    gguf_writer_free(w);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tok_hf f = {0};
    const char *p = (const char *)data, *end = p + size;
    for (int i = 0; i < 5 && p; i++) {
        const char *nul = p < end && i < 4 ? memchr(p, 0, (size_t)(end - p)) : NULL;
        *(i < 4 ? &f.text[i] : &f.chat) = p;
        *(i < 4 ? &f.size[i] : &f.chat_size) = (size_t)((nul ? nul : end) - p);
        p = nul ? nul + 1 : NULL;
    }
    if (import(&f, 0)) return 0;
    import(&f, 258); /* too few for some, with padding for others */
    import(&f, 513); /* MAX_VOCAB of `make fuzz` is smaller */
    return 0;
}
