/* test_engine_refuses.c - files, pairs, sessions and states that must be refused, with what the message must
 * say. */
#include "engine_fixture.h"

/* ---- refusals ---- */

static int add_unknown_key(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen3.expert_count", 8, e);
}
static int add_scaling(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "qwen3.rope.scaling.type", "yarn", 4, e);
}
static int wrong_heads(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen3.attention.head_count", 5, e);
}
static int other_arch(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "phi3", 4, e);
}
static int other_dialect(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "dflash-draft", 12, e);
}
static int conv_key(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.conv_kernel_size", 2, e);
}
static int short_pattern(struct gguf_writer *w, struct err *e)
{
    const uint8_t one = 1;
    return gguf_put_array(w, "dflash.attention.sliding_window_pattern", GGUF_BOOL, &one, 1, e);
}
static int tap_below(struct gguf_writer *w, struct err *e)
{
    const int32_t taps[] = {-1, 3};
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 2, e);
}
static int three_taps(struct gguf_writer *w, struct err *e)
{
    const int32_t taps[] = {1, 2, 3};
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 3, e);
}
static int stop_out_of_range(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "tokenizer.ggml.eos_token_id", TINY_VOCAB, e);
}

static void test_desc_refuses(void **state)
{
    static const struct {
        struct tiny y;
        const char *what;
    } c[] = {
        {{.drop_key = "general.architecture"}, "key 'general.architecture': is missing"},
        {{.edit = other_arch}, "or dflash, got phi3"},
        {{.drop_key = "qwen3.rope.freq_base"}, "key 'qwen3.rope.freq_base': is missing"},
        {{.drop_key = "qwen3.attention.layer_norm_rms_epsilon"}, "layer_norm_rms_epsilon': is missing"},
        {{.drop_key = "qwen3.block_count"}, "key 'qwen3.block_count': is missing"},
        {{.edit = add_unknown_key}, "key 'qwen3.expert_count': is not supported"},
        {{.edit = add_scaling}, "rope scaling is not supported (expected none, got yarn)"},
        {{.edit = wrong_heads}, "(expected 6, got 5)"},
        {{.edit = stop_out_of_range},
         "key 'tokenizer.ggml.eos_token_id': out of range (expected 0 to 10, got 11)"},
        {{.drop_tensor = "blk.2.attn_k_norm.weight"}, "tensor 'blk.2.attn_k_norm.weight': is missing"},
        {{.wide_tensor = "blk.1.ffn_up.weight"}, "(expected [40, 52], got [40, 53])"},
        {{.wide_tensor = "blk.1.attn_norm.weight"}, "(expected [40], got [41])"},
        {{.drafter = true, .edit = other_dialect}, "keys begin with 'dflash.' (expected 'dflash-draft.', as"},
        {{.drafter = true, .edit = conv_key},
         "key 'dflash.conv_group_size': is missing (expected an integer)"},
        {{.drafter = true, .edit = short_pattern}, "(expected bool[2], got bool[1])"},
        {{.drafter = true, .edit = tap_below}, "element 0 out of range (expected 0 to 1024, got -1)"},
        {{.drafter = true, .edit = three_taps}, "is no multiple of the 3 taps"},
        {{.drafter = true, .drop_key = "dflash.block_size"}, "key 'dflash.block_size': is missing"},
        {{.drafter = true, .drop_key = "tokenizer.ggml.mask_token_id"}, "mask_token_id': is missing"},
        {{.drafter = true, .drop_key = "dflash.attention.sliding_window_pattern"},
         "sliding_window_pattern': is missing"},
        {{.drafter = true, .drop_key = "dflash.attention.sliding_window"}, "sliding_window': is missing"},
        {{.drafter = true, .drop_key = "dflash.target_layers"}, "no key that lists target layers"},
        {{.drafter = true, .drop_tensor = "enc.output_norm.weight"},
         "tensor 'enc.output_norm.weight': is missing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct err e = {0};
        struct gguf *g;
        struct desc *d;
        const char *path = scratch("refused.gguf");
        must(tiny_write(path, &c[i].y, &e), &e);
        must(gguf_open(&g, path, &e), &e);
        int rc = desc_read(&d, g, NULL, &e);
        expect_error(rc, &e, ERR_FORMAT, c[i].what);
        assert_non_null(strstr(e.msg, "refused.gguf: "));
        gguf_close(g);
    }
}

static void test_pair_refuses(void **state)
{
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct desc x = *d->d;
    (void)state;
    must(desc_pair(t->d, &x, &e), &e);
    x.taps[1] = 3;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT,
                 "tap 1 out of range (expected a block of the target, 0 to 2, got 3)");
    x = *d->d, e = (struct err){0};
    x.n_features = 60;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT, "= 80, got 60");
    x = *d->d, e = (struct err){0};
    x.mask_id = TINY_VOCAB;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT, "mask id");
    x = *d->d, e = (struct err){0};
    x.n_vocab = 12;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT, "vocabulary (expected the target's 11, got 12)");
    e = (struct err){0};
    expect_error(desc_pair(d->d, d->d, &e), &e, ERR_FORMAT, "is a drafter");
    model_free(d);
    model_free(t);
}

static void test_session_refuses(void **state)
{
    static const int32_t bad[] = {1, 2, TINY_VOCAB};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct session_options o = {.ctx = 50, .kv = {KN_F16, KN_F16}, .block = TINY_BLOCK + 1};
    struct spec_options g = {.n = 50, .sampler = greedy};
    struct spec_stats st;
    struct session *s;
    struct err e = {0};
    (void)state;
    expect_error(session_new(&s, t, d, &o, &e), &e, ERR_USAGE, "expected 2 to the 5");
    /* what the flags and a state take */
    const struct session_options longest = {.ctx = SESSION_MAX_CTX + 1, .kv = {KN_F16, KN_F16}};
    e = (struct err){0};
    expect_error(session_new(&s, t, d, &longest, &e), &e, ERR_USAGE, "expected 1 to 1073741824 positions");
    o.block = 0, e = (struct err){0};
    must(session_new(&s, t, d, &o, &e), &e);
    expect_error(session_prefill(s, prompt, 51, NULL, NULL, &e), &e, ERR_USAGE,
                 "expected at most 50 tokens, got 51");
    e = (struct err){0};
    expect_error(session_prefill(s, bad, 3, NULL, NULL, &e), &e, ERR_FORMAT,
                 "token 2: id out of the vocabulary");
    e = (struct err){0};
    expect_error(session_prefill(s, prompt, 0, NULL, NULL, &e), &e, ERR_FORMAT, "empty");
    e = (struct err){0};
    expect_error(spec_generate(s, &g, &st, &e), &e, ERR_USAGE, "context is too small");
    g.n = 5, e = (struct err){0};
    expect_error(spec_generate(s, &g, &st, &e), &e, ERR_USAGE, "prefill first");
    session_free(s);
    model_free(d);
    model_free(t);
}

static void test_forms_refused(void **state)
{
    struct err e = {0};
    struct model *m;
    (void)state;
    expect_error(model_load(&m, scratch_dir, be, NULL, NULL, NULL, &e), &e, ERR_FORMAT, "is a directory");
    assert_non_null(strstr(e.hint, "dflash-convert "));
    e = (struct err){0};
    expect_error(model_load(&m, scratch("none.gguf"), be, NULL, NULL, NULL, &e), &e, ERR_IO, "none.gguf");
}

/* ---- states ---- */

static void expect_refused(const char *path, struct model *t, struct model *d, int chunk, uint32_t kv,
                           int ctx, enum err_class code, const char *what)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    struct session *s = NULL;
    const struct session_options o = {.ctx = ctx, .chunk = chunk, .kv = {kv, kv}};
    int rc = state_open(&st, path, &info, &e);
    if (rc == 0) {
        must(session_new(&s, t, d, &o, &e), &e);
        rc = state_restore(st, s, &e);
    }
    expect_error(rc, &e, code, what);
    session_free(s);
    state_close(st);
}

static void test_state_refuses(void **state)
{
    struct err e = {0};
    char other_path[128], other_drafter[128], with[128], without[128];
    struct way y = {.prompt = 30, .chunk = 16};
    (void)state;
    snprintf(other_path, sizeof other_path, "%s", scratch("other.gguf"));
    snprintf(other_drafter, sizeof other_drafter, "%s", scratch("other-drafter.gguf"));
    snprintf(with, sizeof with, "%s", scratch("with"));
    snprintf(without, sizeof without, "%s", scratch("without"));
    must(tiny_write(other_path, &(struct tiny){.seed = 9}, &e), &e);
    must(tiny_write(other_drafter, &(struct tiny){.seed = 9, .drafter = true}, &e), &e);
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct model *t2 = load(other_path, be), *d2 = load(other_drafter, be);
    struct session *s = start(&y, t, d);
    must(session_prefill(s, prompt, 30, NULL, NULL, &e), &e);
    save(s, with);
    session_free(s);
    s = start(&y, t, NULL);
    must(session_prefill(s, prompt, 30, NULL, NULL, &e), &e);
    save(s, without);
    session_free(s);
    expect_refused(with, t2, NULL, 16, KN_F16, 50, ERR_FORMAT, "another target");
    expect_refused(with, t, d2, 16, KN_F16, 50, ERR_FORMAT, "another drafter");
    expect_refused(with, t, d, 32, KN_F16, 50, ERR_FORMAT, "another chunk (expected 32, got 16)");
    expect_refused(with, t, d, 16, KN_BF16, 50, ERR_FORMAT, "another cache type (expected BF16, got F16)");
    expect_refused(with, t, d, 16, KN_F16, 29, ERR_USAGE, "expected at most 29 tokens, got 30");
    expect_refused(without, t, d, 16, KN_F16, 50, ERR_FORMAT, "(expected taps 0 2, got none)");
    model_free(t);
    model_free(d);
    model_free(t2);
    model_free(d2);
}

/* Any byte of a state changed, any cut: refused, and never a crash. */
static void test_state_broken(void **state)
{
    struct err e = {0};
    struct way y = {.prompt = 3};
    struct model *t = load(target_path, be);
    struct session *s = start(&y, t, NULL);
    char path[128], broken[128];
    uint8_t *data;
    uint64_t n;
    (void)state;
    snprintf(path, sizeof path, "%s", scratch("good"));
    snprintf(broken, sizeof broken, "%s", scratch("broken"));
    must(session_prefill(s, prompt, 3, NULL, NULL, &e), &e);
    save(s, path);
    session_free(s);
    FILE *f = fopen(path, "rb");
    must(io_read_all(fileno(f), path, 1 << 20, &data, &n, &e), &e);
    fclose(f);
    for (uint64_t i = 0; i < 2 * n; i += 1 + n / 90) {
        struct state *st;
        struct state_info info;
        struct io_out o;
        uint64_t at = i % n;
        if (i < n) data[at] ^= 0x55;
        must(io_out_open(&o, broken, true, NULL, 0, &e) || io_out_write(&o, data, i < n ? n : at, &e) ||
                 io_out_commit(&o, &e),
             &e);
        if (i < n) data[at] ^= 0x55;
        int rc = state_open(&st, broken, &info, &e);
        if (rc == 0) {
            s = start(&y, t, NULL);
            rc = state_restore(st, s, &e);
            session_free(s);
            state_close(st);
        }
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_FORMAT);
        e = (struct err){0};
    }
    mem_free(data);
    model_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_desc_refuses),    cmocka_unit_test(test_pair_refuses),
        cmocka_unit_test(test_session_refuses), cmocka_unit_test(test_forms_refused),
        cmocka_unit_test(test_state_refuses),   cmocka_unit_test(test_state_broken),
    };
    return cmocka_run_group_tests_name("engine_refuses", tests, engine_begin, engine_end);
}
