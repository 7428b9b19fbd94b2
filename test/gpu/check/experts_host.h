/* experts_host.h - experts of which some lie in the host's memory (experts_gpu.c): what rows get of them is
 * what they get of the device's, to the bit, in every form, of one row in one launch, recorded, with any of
 * them there. */
#ifndef DFLASH_EXPERTS_HOST_H
#define DFLASH_EXPERTS_HOST_H

/* n of n_mat ids, in any order. */
static int32_t *ids_to_host(int32_t n_mat, int32_t n)
{
    int32_t *ids = host_alloc((size_t)n_mat * sizeof *ids);
    for (int32_t i = 0; i < n_mat; i++) ids[i] = i;
    for (int32_t i = 0; i < n; i++) {
        const int32_t j = i + (int32_t)(rnd32() % (uint32_t)(n_mat - i)), x = ids[i];
        ids[i] = ids[j], ids[j] = x;
    }
    return ids;
}

static struct matrices matrices_hosted(const struct matrices *m, const int32_t *ids, int32_t n)
{
    struct matrices h = *m;
    kn_hosted(gpu, ids, n);
    must(gpu, "experts_load",
         kn_op(gpu)->experts_load(gpu, &h.w, m->type, m->n_in, m->n_out, m->n_mat, m->file));
    kn_hosted(gpu, NULL, 0);
    return h;
}

/* Gate and up, then down, of both in every form. */
static bool products_alike(struct data *d, struct data *h, int n)
{
    const struct matrices own[3] = {h->gate, h->up, h->down};
    bool same = true;
    data_make(d, d->s, n, MIXED);
    *h = *d;
    h->gate = own[0], h->up = own[1], h->down = own[2];
    const size_t hidden = (size_t)n * d->hidden * 4, outs = (size_t)n * d->out * 4;
    float *want = host_alloc(hidden > outs ? hidden : outs), *got = host_alloc(hidden > outs ? hidden : outs);
    for (int form = -1; form < 5; form++) {
        experts_tuning.form = form;
        run_gated(d, n, want);
        run_gated(h, n, got);
        same &= !memcmp(want, got, hidden);
        run_down(d, n, n % 2, want);
        run_down(h, n, n % 2, got);
        same &= !memcmp(want, got, outs);
    }
    experts_tuning.form = -1;
    free(want), free(got);
    return same;
}

/* A mixture with its router, of rows at once: of one row one launch, where it fits. */
static bool mixtures_alike(const struct data *d, const struct data *h, const struct matrices *router,
                           const struct kn_weight *const *shared)
{
    const int n = d->n, used = d->s->used + (shared ? 1 : 0);
    const size_t pairs = (size_t)(n * used);
    struct left l[2];
    for (int i = 0; i < 2; i++) {
        struct mixed m = {put(gpu, NULL, (size_t)(n * d->s->n_mat) * 4),
                          put(gpu, NULL, (size_t)n * 4),
                          put(gpu, NULL, pairs * 4),
                          put(gpu, NULL, pairs * (size_t)d->s->ff * 4),
                          put(gpu, d->old, (size_t)n * d->out * 4),
                          put(gpu, NULL, pairs * 4),
                          &router[0].w,
                          &router[1].w};
        mix(i ? h : d, &m, shared, 0, n);
        l[i] = left_of(d, &m, n, used);
        void *const device[] = {m.logits, m.shared_logits, m.weights, m.h, m.out, m.ids};
        for (int j = 0; j < 6; j++) drop(gpu, device[j]);
    }
    const bool same = !memcmp(l[0].all, l[1].all, l[0].bytes);
    free(l[0].all), free(l[1].all);
    return same;
}

static void check_hosted(struct data *d, const struct matrices *router, const struct kn_weight *const *shared,
                         int32_t host)
{
    static const int counts[] = {1, 2, 3, 5, 9, 17, 64, 70, 301};
    const struct shape *s = d->s;
    int32_t *ids = ids_to_host(s->n_mat, host);
    struct data h = *d;
    bool products = true, mixtures = true;
    h.gate = matrices_hosted(&d->gate, ids, host);
    h.up = matrices_hosted(&d->up, ids, host);
    h.down = matrices_hosted(&d->down, ids, host);
    const bool there = !kn_op(gpu)->alloc_host || (h.gate.w.n_host == host && h.down.w.host && h.up.w.places);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        products &= products_alike(d, &h, counts[i]);
        for (int with = 0; kn_op(gpu)->mixture && with < (shared && s->used < 32 ? 2 : 1); with++)
            mixtures &= mixtures_alike(d, &h, router, with ? shared : NULL);
        data_free(d);
    }
    verdict(there && products && mixtures, "experts %s, %d of them with the host%s%s%s", s->name, host,
            there ? "" : ": they are not there", products ? "" : ": other bits of products",
            mixtures ? "" : ": other bits of mixtures");
    kn_op(gpu)->weight_free(gpu, &h.gate.w);
    kn_op(gpu)->weight_free(gpu, &h.up.w);
    kn_op(gpu)->weight_free(gpu, &h.down.w);
    free(ids);
}

static void check_host(struct data *d)
{
    const struct kn_ops *op = kn_op(gpu);
    struct matrices *const own[3] = {&d->gate, &d->up, &d->down};
    struct matrices router[2];
    struct kn_weight one[3];
    const struct kn_weight *shared[3] = {&one[0], &one[1], &one[2]};
    const int32_t n_mat = d->s->n_mat;
    if (n_mat < 2) return;
    for (int j = 0; j < 2; j++) {
        const size_t rows = j ? 1 : (size_t)n_mat, width = (size_t)d->s->embd;
        router[j] = (struct matrices){.type = KN_F32, .n_in = d->s->embd, .n_out = (int64_t)rows};
        router[j].file = host_alloc(rows * width * 4);
        for (size_t i = 0; i < rows * width; i++)
            ((float *)router[j].file)[i] = (float)((int32_t)rnd32() * 0x1p-33);
        must(gpu, "weight_load",
             op->weight_load(gpu, &router[j].w, KN_F32, (int64_t)width, (int64_t)rows, router[j].file,
                             KN_USE_LINEAR));
    }
    for (int j = 0; j < 3; j++)
        must(gpu, "weight_load",
             op->weight_load(gpu, &one[j], own[j]->type, own[j]->n_in, own[j]->n_out, own[j]->file,
                             KN_USE_LINEAR));
    check_hosted(d, router, shared, n_mat / 2);
    if (n_mat > 2) check_hosted(d, router, shared, n_mat - 1);
    for (int j = 0; j < 3; j++) op->weight_free(gpu, &one[j]);
    matrices_free(router), matrices_free(router + 1);
}

/* More than there are, all of them, one twice: on the device alone, for elsewhere it says nothing. */
static void check_host_refusals(void)
{
    static const struct {
        int32_t n, ids[4];
    } bad[] = {{3, {0, 1, 2}}, {1, {3}}, {1, {-1}}, {2, {1, 1}}};
    uint8_t *file = host_alloc(3 * 16 * kn_row_bytes(KN_Q8_0, 64));
    if (!kn_op(gpu)->alloc_host) {
        free(file);
        return;
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_weight w;
        kn_hosted(gpu, bad[i].ids, bad[i].n);
        const int rc = kn_op(gpu)->experts_load(gpu, &w, KN_Q8_0, 64, 16, 3, file);
        verdict(rc == KN_EINVAL && !w.host && !w.packed && strstr(kn_message(gpu), "host's memory"),
                "refused: %s", kn_message(gpu));
    }
    kn_hosted(gpu, NULL, 0);
    free(file);
}

#endif
