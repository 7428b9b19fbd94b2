/* convert_names.c - one tensor's name, from Hugging Face to GGUF, through the converter's tables. */
#include "convert_impl.h"

#include <stdio.h>
#include <string.h>

/* Match name against a rule's pattern, whose "%d" stands for a layer number. *layer is -1 for a pattern
 * without one. */
static bool match(const char *pattern, const char *name, int *layer)
{
    const char *hole = strstr(pattern, "%d");
    *layer = -1;
    if (!hole) return !strcmp(pattern, name);
    size_t head = (size_t)(hole - pattern);
    int digits = 0;
    if (strncmp(pattern, name, head)) return false;
    return sscanf(name + head, "%9d%n", layer, &digits) == 1 && *layer >= 0 &&
           !strcmp(hole + 2, name + head + digits);
}

int convert_gguf_name(const char *hf, char *out, size_t n)
{
    const char *name = !strncmp(hf, "model.", 6) ? hf + 6 : hf;
    if (!strncmp(name, "language_model.", 15)) name += 15;
    for (size_t f = 0; conv_families[f]; f++)
        for (const struct conv_rule *r = conv_families[f]->rules; r->hf; r++) {
            int layer;
            if (r->flags & (CONV_STACK | CONV_MTP)) continue;
            if (!match(r->hf, name, &layer)) continue;
            const char *hole = strstr(r->gguf, "%d");
            if (!hole)
                snprintf(out, n, "%s", r->gguf);
            else
                snprintf(out, n, "%.*s%d%s", (int)(hole - r->gguf), r->gguf, layer, hole + 2);
            return 0;
        }
    return -1;
}
