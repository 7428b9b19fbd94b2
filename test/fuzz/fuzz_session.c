/* fuzz_session.c - any bytes as a saved state that is loaded into a session and generated from: four small
 * models that are real (a dense target and a hybrid one with gated delta nets, each alone and with a
 * drafter). The first two bytes choose models and options, the rest is the state; every section's checksum is
 * put right where it has its place. What is accepted generates ids of the vocabulary, or ends in a message
 * about its numbers; and whatever stands in the drafter's context, its output is that of the target alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "../../common/make/convert.h"
#include "../../common/run/session.h"
#include "../../common/run/spec.h"
#include "../../common/run/state.h"
#include "../unit/run/tiny_pair.h"
#include "stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void session_seeds(const char *folder);

enum { TOKENS = 6, CHUNK = 8, PROMPT = 14 };

/* As the tiny drafter wants its target, but for its layers. */
static const char hybrid[] = "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"attention_bias\":false,\"hidden_"
                             "act\":\"silu\",\"max_position_embeddings\":4096,"
                             "\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_"
                             "token_id\":2,\"model_type\":\"qwen3_5_text\","
                             "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"
                             "\"partial_rotary_factor\":0.5,\"mrope_section\":[2,1,1],"
                             "\"mrope_interleaved\":true},\"hidden_size\":40,\"head_dim\":16,\"num_attention_"
                             "heads\":2,\"num_key_value_heads\":1,"
                             "\"intermediate_size\":48,\"num_hidden_layers\":4,\"full_attention_interval\":2,"
                             "\"linear_conv_kernel_dim\":4,"
                             "\"linear_key_head_dim\":16,\"linear_num_key_heads\":1,\"linear_num_value_"
                             "heads\":2,\"linear_value_head_dim\":16,"
                             "\"vocab_size\":11}";

static struct kn_backend *be;
static struct model *target[2], *drafter;

static void must(int rc, const struct err *e)
{
    if (!rc) return;
    fprintf(stderr, "%s\n", e->msg);
    exit(4);
}

static void load(struct model **m, const char *path)
{
    const struct desc_override none = {.draft_causal = -1};
    struct err e = {0};
    must(model_load(m, path, be, &none, NULL, NULL, &e), &e);
}

static void make_models(void)
{
    const struct kn_open o = {.device = "cpu", .threads = 1};
    struct err e = {0};
    struct convert c;
    char msg[256];
    if (be) return;
    scratch_begin();
    if (kn_backend_open(&be, &o, msg, sizeof msg)) must(err_set(&e, ERR_IO, "%s", msg), &e);
    must(tiny_write(scratch("t.gguf"), &(struct tiny){.seed = 1}, &e), &e);
    must(tiny_write(scratch("d.gguf"), &(struct tiny){.drafter = true, .seed = 2}, &e), &e);
    scratch_write(scratch("config.json"), hybrid, sizeof hybrid - 1);
    convert_defaults(&c);
    c.input = scratch("config.json");
    c.output = scratch("h.gguf");
    c.random = true;
    c.seed = 3;
    c.type_given = true;
    c.type = QUANT_F32;
    c.threads = 1;
    must(convert_run(&c, &e), &e);
    load(&target[0], scratch("t.gguf"));
    load(&target[1], scratch("h.gguf"));
    load(&drafter, scratch("d.gguf"));
    scratch_end(); /* they are mapped */
}

/* ---- seeds ---- */

static struct session *session(unsigned models, unsigned options, bool drafted)
{
    static const uint32_t kv[] = {KN_F16, KN_F16, KN_BF16, KN_F32};
    const struct session_options o = {.ctx = options & 64 ? PROMPT + TOKENS + 1 : 40,
                                      .chunk = CHUNK,
                                      .kv = {kv[options & 3], kv[options & 3]},
                                      .draft_window = options & 4 ? 3 : 0,
                                      .check_layers = options & 8};
    struct err e = {0};
    struct session *s;
    must(session_new(&s, target[models & 1], drafted ? drafter : NULL, &o, &e), &e);
    return s;
}

static void seed(const char *folder, unsigned models, unsigned options, int32_t n)
{
    char path[512];
    int32_t ids[PROMPT];
    struct err e = {0};
    struct io_out o;
    struct session *s = session(models, options, models & 2);
    const uint8_t head[] = {(uint8_t)models, (uint8_t)options};
    for (int32_t i = 0; i < n; i++) ids[i] = (i * 7 + 3) % TINY_VOCAB;
    must(session_prefill(s, ids, n, NULL, NULL, &e), &e);
    snprintf(path, sizeof path, "%s/seed-%u-%u-%d", folder, models, options, n);
    must(io_out_open(&o, path, true, NULL, 0, &e), &e);
    must(io_out_write(&o, head, sizeof head, &e), &e);
    must(state_save(s, &o, &e), &e);
    must(io_out_commit(&o, &e), &e);
    session_free(s);
}

/* The states that the corpus begins with, one a file. */
void session_seeds(const char *folder)
{
    make_models();
    for (unsigned models = 0; models < 4; models++) {
        seed(folder, models, 0, 2);
        seed(folder, models, 64, models & 1 ? 4 : PROMPT); /* past the drafter's window */
        seed(folder, models, 2 | 4, 1);
        seed(folder, models, 3 | 8, 3);
    }
}

/* ---- one input ---- */

/* Checksums put right, and the names of the models too, which come of what the converter writes: else a
 * corpus is refused whole after the next change there. */
static void mend(uint8_t *p, size_t size, unsigned models)
{
    size_t at = 16;
    uint64_t n;
    if (size >= at + 12 + 64 && !(models & 4)) {
        memcpy(p + at + 12 + 32, target[models & 1]->d->identity, 16);
        memcpy(p + at + 12 + 48, drafter->d->identity, 16);
    }
    while (size >= at + 16) {
        memcpy(&n, p + at + 4, 8);
        if (n > size - at - 16) return;
        uint32_t crc = (uint32_t)crc32_z(0, p + at, (size_t)n + 12);
        memcpy(p + at + 12 + n, &crc, 4);
        at += 16 + (size_t)n;
    }
}

struct stream {
    int32_t n, ids[TOKENS];
};

static int take(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct stream *t = ctx;
    (void)e;
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= TINY_VOCAB || t->n == TOKENS) abort();
        t->ids[t->n++] = ids[i];
    }
    return 0;
}

/* The state into a session, and TOKENS from there: 0, or what refused it or its numbers. */
static int resume(const uint8_t *data, size_t size, unsigned models, unsigned options, bool drafted,
                  struct stream *t, struct err *e)
{
    struct spec_options o = {.n = TOKENS,
                             .sampler = {.top_p = 1,
                                         .repeat_penalty = options & 16 ? 1.25f : 1,
                                         .temp = options & 32 ? 0.8f : 0,
                                         .repeat_last = options & 16 ? 8 : 0,
                                         .seed = 5},
                             .tokens = take,
                             .ctx = t};
    struct spec_stats st;
    struct state_info info;
    struct state *in = NULL;
    struct session *s = session(models, options, drafted);
    stream_set(data, size, options & 128, options & 128 ? 0 : 977, false);
    int rc = state_open(&in, STREAM_PATH, &info, e);
    if (rc == 0) rc = state_restore(in, s, e);
    if (rc && (e->code != ERR_FORMAT && e->code != ERR_USAGE)) abort();
    state_close(in);
    if (rc == 0 && (rc = spec_generate(s, &o, &st, e)) != 0 && e->code != ERR_DEVICE && e->code != ERR_USAGE)
        abort();
    if (rc == 0 && t->n != TOKENS) abort();
    if (rc && !e->msg[0]) abort();
    session_free(s);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stream plain = {0}, drafted = {0};
    struct err e = {0}, e2 = {0};
    make_models();
    if (size < 2) return 0;
    const unsigned models = data[0] & 3, options = data[1];
    uint8_t *copy = malloc(size - 1); /* of one byte at least */
    if (!copy) return 0;
    memcpy(copy, data + 2, size - 2);
    mend(copy, size - 2, data[0]);
    int rc = resume(copy, size - 2, models, options, models & 2, &drafted, &e);
    /* the target's own numbers are the same with and without a drafter, so is the stream, and so is an error
     * about them */
    if ((rc == 0 || e.code == ERR_DEVICE) && models & 2) {
        int alone = resume(copy, size - 2, models, options, false, &plain, &e2);
        if (alone != rc || (rc && strcmp(e.msg, e2.msg))) abort();
        if (plain.n != drafted.n || memcmp(plain.ids, drafted.ids, (size_t)drafted.n * sizeof *plain.ids))
            abort();
    }
    free(copy);
    return 0;
}
