/* fuzz_tokenizer_json.c - the importer over any text: as tokenizer.json, and behind it (after a NUL byte
 * each) tokenizer_config.json, generation_config.json and config.json. Nothing may crash, leak, or fail
 * without a message. */
#include <stdlib.h>
#include <string.h>

#include "../../common/tokenizer_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tok_hf f = {0};
    const char *p = (const char *)data, *end = p + size;
    for (int i = 0; i < 4 && p; i++) {
        const char *nul = p < end && i < 3 ? memchr(p, 0, (size_t)(end - p)) : NULL;
        f.text[i] = p;
        f.size[i] = (size_t)((nul ? nul : end) - p);
        p = nul ? nul + 1 : NULL;
    }
    struct gguf_writer *w = NULL;
    struct err e = {0};
    if (gguf_writer_new(&w, &e)) return 0;
    int rc = tok_import_texts(w, &f, 0, &e);
    if (rc && (e.code == ERR_NONE || !e.msg[0])) abort();
    if (!rc && e.code != ERR_NONE) abort();
    gguf_writer_free(w);
    return 0;
}
