/* ends.c - see ends.h. */
#include "ends.h"

#include <stdbool.h>
#include <string.h>

enum { TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 }; /* tokenizer.ggml.token_type */

static const char *const ends[] = {"<|eot_id|>",
                                   "<|im_end|>",
                                   "<|end|>",
                                   "<|return|>",
                                   "<|call|>",
                                   "<|calls|>",
                                   "<|flush|>",
                                   "<end_of_turn>",
                                   "<|end_of_turn|>",
                                   "<|endoftext|>",
                                   "<|end_of_text|>",
                                   "</s>",
                                   "<|eom_id|>",
                                   "<EOT>",
                                   "_<EOT>",
                                   "[EOT]",
                                   "[EOS]",
                                   "<end_of_utterance>",
                                   "<eos>",
                                   "<turn|>",
                                   "<|tool_response>",
                                   "<\xef\xbd\x9c"
                                   "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                   "[e~["};
enum { N_ENDS = sizeof ends / sizeof ends[0] };

/* Which of the list it is, or -1. */
static int which(struct gguf_str s)
{
    if (s.n < 4 || !strchr("<_[", s.s[0])) return -1;
    for (int i = 0; i < N_ENDS; i++)
        if (gguf_str_is(s, ends[i])) return i;
    return -1;
}

static bool has(const bool *found, const char *text)
{
    for (int i = 0; i < N_ENDS; i++)
        if (!strcmp(ends[i], text)) return found[i];
    return false;
}

/* Tokens of the list that say something else beside some others of it. */
static bool is_none(const bool *found, const char *text)
{
    const bool call = has(found, "<|call|>") || has(found, "<|calls|>");
    if (!strcmp(text, "</s>")) return has(found, "<|tool_response>"); /* Gemma 4: HTML */
    if (!strcmp(text, "<|end|>"))
        return call && (has(found, "<|return|>") || has(found, "<|flush|>")); /* of a part */
    return false;
}

int32_t ends_find(const struct gguf *g, int32_t *ids)
{
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    const struct gguf_kv *types = gguf_find(g, "tokenizer.ggml.token_type");
    bool found[N_ENDS] = {false};
    int32_t n = 0, kept = 0;
    if (!tokens || tokens->type != GGUF_ARRAY || !tokens->strings || tokens->count > INT32_MAX || !types ||
        types->type != GGUF_ARRAY || (types->elem != GGUF_I32 && types->elem != GGUF_U32) ||
        types->count != tokens->count)
        return 0;
    for (uint64_t i = 0; i < tokens->count && n < ENDS_MAX; i++) {
        const int k = which(tokens->strings[i]);
        const int64_t type = k < 0 ? 0 : gguf_array_i64(types, i);
        if (type != TYPE_CONTROL && type != TYPE_USER_DEFINED) continue;
        found[k] = true;
        ids[n++] = (int32_t)i;
    }
    for (int32_t i = 0; i < n; i++)
        if (!is_none(found, ends[which(tokens->strings[ids[i]])])) ids[kept++] = ids[i];
    return kept;
}
