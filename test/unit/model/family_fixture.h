/* family_fixture.h - what the tests of families beside Qwen3 share: a family's config over the base one,
 * cases that change it, and descriptions of a converted file with a key or tensor changed. */
#ifndef FAMILY_FIXTURE_H
#define FAMILY_FIXTURE_H

#include "../make/convert_fixture.h"

#include "../../../common/describe/desc.h"
#include "../../../common/base/io.h"

/* base_target with a family's parts and a case's changes over it. */
static inline void family_config(const char *dir, const struct pair *parts, const struct pair *change)
{
    write_changed(dir, base_target, parts, change);
}

static inline void take_out(struct spec *s, const char *part)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        if (!strstr(s->t[i].name, part)) s->t[n++] = s->t[i];
    s->n = n;
}

static inline const struct gguf_tensor *need(const struct gguf *g, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(g, name);
    if (!t) fail_msg("no %s", name);
    return t;
}

struct family_case {
    struct pair change[3];
    const char *msg;
};

static inline void run_family(const struct pair *parts, const struct spec *s, const struct family_case *c,
                              size_t n)
{
    write_weights("t", s);
    for (size_t i = 0; i < n; i++) {
        struct convert o = options("t");
        family_config("t", parts, c[i].change);
        if (c[i].msg)
            convert_bad(&o, ERR_FORMAT, c[i].msg);
        else
            convert_ok(&o);
    }
}

/* ---- descriptions ---- */

/* out.gguf again at path, without a key or tensor, with a key set to a number. */
static inline void rewrite(const char *path, const char *drop, const char *set, uint32_t value)
{
    struct err e = {0};
    struct gguf *g = open_out();
    struct gguf_writer *w;
    struct io_out out;
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (!drop || strcmp(g->kv[i].key, drop)) assert_int_equal(gguf_put_kv(w, &g->kv[i], &e), 0);
    if (set) assert_int_equal(gguf_put_u32(w, set, value, &e), 0);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        if (drop && !strcmp(t->name, drop)) continue;
        assert_int_equal(gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne, &e), 0);
    }
    assert_int_equal(io_out_open(&out, path, true, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &out, &e), 0);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (!drop || strcmp(g->tensor[i].name, drop))
            assert_int_equal(gguf_write_data(w, &out, g->tensor[i].data, g->tensor[i].bytes, &e), 0);
    assert_int_equal(gguf_write_end(w, &out, &e), 0);
    assert_int_equal(io_out_commit(&out, &e), 0);
    gguf_writer_free(w);
    gguf_close(g);
}

struct desc_case {
    const char *drop, *set;
    uint32_t value;
    const char *msg; /* a part of it */
};

static inline void run_descs(const struct desc_case *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct gguf *g;
        struct desc *d = NULL;
        struct err e = {0};
        rewrite("edited.gguf", c[i].drop, c[i].set, c[i].value);
        assert_int_equal(gguf_open(&g, "edited.gguf", &e), 0);
        int rc = desc_read(&d, g, NULL, &e);
        if (rc != (c[i].msg ? -1 : 0) || (c[i].msg && !strstr(e.msg, c[i].msg)))
            fail_msg("case %zu: got \"%s\", expected \"%s\"", i, e.msg, c[i].msg ? c[i].msg : "");
        if (c[i].msg) assert_int_equal(e.code, ERR_FORMAT);
        desc_free(d);
        gguf_close(g);
    }
}

#endif
