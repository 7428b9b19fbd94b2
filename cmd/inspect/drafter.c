/* drafter.c - what a drafter's file says of itself: dialect, taps in both readings, what was inferred. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "../../common/describe/desc.h"
#include "../../common/describe/dialect.h"
#include "show.h"

static void print_line(void *ctx, const char *subject, const char *text)
{
    (void)ctx;
    printf("%-12s %s\n", subject, show_text(text));
}

static json_t *ints(const int32_t *v, int32_t n)
{
    json_t *a = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(a, json_integer(v[i]));
    return a;
}

static json_t *as_json(const struct desc *d)
{
    json_t *windows = json_array(), *causal = json_array();
    for (int32_t i = 0; i < d->n_layer; i++) {
        json_array_append_new(windows, json_integer(d->layer[i].window));
        json_array_append_new(causal, json_boolean(d->layer[i].causal));
    }
    return json_pack("{s:i,s:s,s:b,s:s,s:s,s:s,s:o,s:i,s:b,s:i,s:i,s:f,s:o,s:o,s:b,s:b,s:s}", "schema", 1,
                     "kind", "drafter", "understood", 1, "dialect", d->dialect, "is_a", d->kind, "pieces",
                     show_text(d->pieces), "taps", ints(d->taps, d->n_taps), "tap_shift", d->tap_shift,
                     "taps_given", d->taps_given, "block_size", d->block_size, "mask_id", d->mask_id,
                     "rope_theta", (double)d->rope[0].theta, "windows", windows, "causal", causal,
                     "causal_inferred", d->causal_inferred, "tokenizer", d->has_tokenizer, "inferred",
                     show_text(d->inferred));
}

static void print_layers(const struct desc *d)
{
    char text[1024] = "";
    for (int32_t i = 0; i < d->n_layer && strlen(text) < sizeof text - 64; i++) {
        const struct desc_layer *y = &d->layer[i];
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%c%s", i ? " " : "", y->window ? 's' : 'f',
                 y->causal ? "+" : "");
    }
    printf("%-12s %s (f full, s sliding; + causal in the block%s)\n", "layers", text,
           d->causal_inferred ? ", inferred" : "");
}

static void print_dflash(const struct desc *d)
{
    desc_tell(d, "--", print_line, NULL);
    print_layers(d);
    printf("%-12s %d rows, mask id %d, theta %g\n", "block", d->block_size, d->mask_id,
           (double)d->rope[0].theta);
}

static void print_mtp(const struct desc *d)
{
    const struct desc_layer *y = d->layer;
    printf("%-12s the MTP block blk.%d of a %s, %s\n", "drafter", d->first_block, d->arch_name,
           d->apart ? "in a file of its own" : "beside its target (dflash-generate -d target)");
    printf("%-12s %d/%d heads of %d, %s, theta %g\n", "layer", y->n_head, y->n_head_kv, y->head_dim,
           y->moe ? "experts" : "dense", (double)d->rope[0].theta);
    printf("%-12s %s embedding, %s head, %s before it\n", "borrowed",
           d->own_embed ? "its own" : "the target's", d->own_head ? "its own" : "the target's", d->head_norm);
    printf("%-12s %d rows unless --block says other, %d at most\n", "block", d->block_size, d->block_most);
    if (*d->inferred) print_line(NULL, "inferred", d->inferred);
}

static void print_assistant(const struct desc *d)
{
    printf(
        "%-12s an assistant of Gemma 4: %d layers over the target's own keys and values, hidden size %d of "
        "%d\n",
        "drafter", d->n_layer, d->n_embd, d->n_embd_target);
    for (int32_t i = 0; i < d->n_layer; i++)
        printf("%-12s %d heads of %d, %s\n", i ? "" : "layers", d->layer[i].n_head, d->layer[i].head_dim,
               d->layer[i].window ? "sliding" : "full");
    if (d->n_clusters)
        printf("%-12s %d ids in %d clusters, of which the best %d count\n", "head", d->n_vocab, d->n_clusters,
               d->n_best);
    else
        printf("%-12s its own, of %d ids\n", "head", d->n_vocab);
    printf("%-12s %d rows unless --block says other, %d at most\n", "block", d->block_size, d->block_most);
    if (*d->inferred) print_line(NULL, "inferred", d->inferred);
}

int show_drafter(const struct gguf *g, const struct desc_override *o, bool json, struct err *e)
{
    struct gguf_str arch = {0};
    struct err mine = {0};
    struct desc *d = NULL;
    struct desc_override as = *o;
    as.drafter = true;
    const bool drafter =
        desc_holds_mtp(g) || (!gguf_get_str(g, "general.architecture", &arch, &mine) &&
                              (dialect_is_drafter(arch) || desc_is_assistant(arch) || desc_stranger(arch)));
    if (!drafter && desc_override_given(o))
        return err_set(e, ERR_USAGE, "--%s is for drafters (expected a drafter's GGUF)",
                       desc_override_given(o));
    if (!drafter) return 0;
    if (desc_read(&d, g, &as, &mine)) {
        if (mine.code != ERR_FORMAT) {
            *e = mine;
            return -1;
        }
        if (json) {
            json_t *line = json_pack("{s:i,s:s,s:b,s:s}", "schema", 1, "kind", "drafter", "understood", 0,
                                     "why", mine.msg);
            if (line && mine.hint[0]) json_object_set_new(line, "hint", json_string(mine.hint));
            show_json_line(line);
        } else {
            printf("\n%-12s not understood: %s\n", "drafter", mine.msg);
            if (mine.hint[0]) printf("%-12s %s\n", "hint", mine.hint);
        }
        return 0;
    }
    if (json) {
        show_json_line(as_json(d));
    } else {
        putchar('\n');
        if (d->arch == DESC_QWEN35_MTP)
            print_mtp(d);
        else if (d->arch == DESC_GEMMA4_ASSISTANT)
            print_assistant(d);
        else
            print_dflash(d);
        if (d->has_tokenizer)
            printf("%-12s %d tokens, crc32 %08x\n", "tokenizer", d->n_tokens, d->tokenizer_crc);
        else
            printf("%-12s none in the file\n", "tokenizer");
    }
    desc_free(d);
    return 0;
}
