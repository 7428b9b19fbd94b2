/* experts_around.h - of experts_gpu.c: what stands around a mixture of one row. The product before it and
 * those behind it are taken into its launch (kernels/cuda/experts_whole.cu); the bits are those of launches
 * of their own. */

/* A dense weight with values of about 1 / 64, so that what is added to x again and again stays of its size.
 */
static struct kn_weight dense(uint32_t type, int64_t n_out, int64_t n_in)
{
    const size_t row = kn_row_bytes(type, n_in);
    uint8_t *file = host_alloc((size_t)n_out * row);
    float *x = host_alloc((size_t)n_in * 4);
    struct kn_weight w;
    for (int64_t i = 0; i < n_out; i++) {
        if (i >= 100) {
            memcpy(file + (size_t)i * row, file + (size_t)(rnd32() % 100) * row, row);
            continue;
        }
        for (int64_t k = 0; k < n_in; k++) x[k] = (float)((int32_t)rnd32() * 0x1p-37);
        kn_encode_row(type, x, file + (size_t)i * row, n_in, NULL);
    }
    must(gpu, "weight_load", kn_op(gpu)->weight_load(gpu, &w, type, n_in, n_out, file, KN_USE_LINEAR));
    free(file), free(x);
    return w;
}

/* Rows of a model: W of a gated row added to x, a mixture, products of the new x: in launches of their own
 * (experts_tuning.apart) and in one, again and again with other rows. */
struct around {
    const char *name;
    const struct shape *s;
    bool shared;
    uint32_t before;
    int64_t width; /* of the row before */
    int32_t n_w;
    uint32_t types[4];
    int64_t n_out[4];
};

static void check_around(const struct around *r, struct data *d, const struct matrices *router,
                         const struct kn_weight *const *shared)
{
    enum { ROWS = 24 };
    const struct kn_ops *op = kn_op(gpu);
    const struct shape *s = r->s;
    const int used = s->used + (r->shared ? 1 : 0);
    const size_t embd = (size_t)s->embd, width = (size_t)r->width;
    struct kn_weight before = dense(r->before, s->embd, r->width), w[4];
    const struct kn_weight *list[4];
    float *out[4], *x0 = host_alloc(embd * 4), *row = host_alloc(ROWS * width * 4),
                   *g = host_alloc(ROWS * width * 4);
    size_t bytes = embd * 4;
    for (int j = 0; j < r->n_w; j++) {
        w[j] = dense(r->types[j], r->n_out[j], s->embd);
        list[j] = &w[j];
        out[j] = put(gpu, NULL, (size_t)r->n_out[j] * 4);
        bytes += (size_t)r->n_out[j] * 4;
    }
    for (size_t i = 0; i < embd; i++) x0[i] = (float)((int32_t)rnd32() * 0x1p-31);
    for (size_t i = 0; i < ROWS * width; i++)
        row[i] = (float)((int32_t)rnd32() * 0x1p-31), g[i] = (float)((int32_t)rnd32() * 0x1p-29);
    uint8_t *left[4];
    const int apart[4] = {3, 0, 1, 2};
    bool same[4] = {true, true, true, true};
    for (int how = 0; how < 4; how++) {
        float *x = put(gpu, x0, embd * 4), *d_row = put(gpu, row, ROWS * width * 4),
              *d_g = put(gpu, g, ROWS * width * 4), *logits = put(gpu, NULL, (size_t)s->n_mat * 4),
              *gate = put(gpu, NULL, 4), *weights = put(gpu, NULL, (size_t)used * 4),
              *h = put(gpu, NULL, (size_t)used * (size_t)s->ff * 4);
        int32_t *ids = put(gpu, NULL, (size_t)used * 4);
        left[how] = host_alloc(ROWS * bytes);
        experts_tuning.apart = apart[how];
        for (int i = 0; i < ROWS; i++) {
            must(gpu, "gate_linear",
                 op->gate_linear(gpu, x, &before, d_row + (size_t)i * width, d_g + (size_t)i * width, 1));
            struct kn_mixture m = {.route = {.logits = logits,
                                             .n = 1,
                                             .n_expert = s->n_mat,
                                             .n_used = s->used,
                                             .renorm = true,
                                             .scale = 1,
                                             .ids = ids,
                                             .weights = weights},
                                   .x = x,
                                   .norm = d->d_norm,
                                   .eps = eps,
                                   .act = s->act,
                                   .router = &router[0].w,
                                   .router_norm = d->d_norm,
                                   .logits = logits,
                                   .gate = &d->gate.w,
                                   .up = &d->up.w,
                                   .down = &d->down.w,
                                   .h = h,
                                   .out = x,
                                   .add = true};
            for (int j = 0; r->shared && j < 3; j++) m.shared[j] = shared[j];
            if (r->shared) m.shared_gate = &router[1].w, m.shared_logits = gate;
            must(gpu, "mixture", op->mixture(gpu, &m));
            must(gpu, "norm_linear", op->norm_linear(gpu, out, list, r->n_w, x, d->d_norm, eps, 1));
            uint8_t *to = left[how] + (size_t)i * bytes;
            fetch(to, x, embd * 4);
            to += embd * 4;
            for (int j = 0; j < r->n_w; j++, to += r->n_out[j - 1] * 4)
                fetch(to, out[j], (size_t)r->n_out[j] * 4);
        }
        same[how] = !memcmp(left[how], left[0], ROWS * bytes);
        void *const device[] = {x, d_row, d_g, logits, gate, weights, h, ids};
        for (int i = 0; i < 8; i++) op->free(gpu, device[i]);
    }
    experts_tuning.apart = 0;
    bool finite = true;
    for (size_t i = 0; i < ROWS * bytes / 4; i++) finite &= isfinite(((const float *)left[0])[i]) != 0;
    verdict(same[1] && same[2] && same[3] && finite, "around a mixture, %s, %d rows%s%s%s%s", r->name, ROWS,
            same[1] ? "" : ", other bits in one launch", same[2] ? "" : ", with those behind alone",
            same[3] ? "" : ", with the one before alone", finite ? "" : ", not finite");
    for (int how = 0; how < 4; how++) free(left[how]);
    for (int j = 0; j < r->n_w; j++) op->weight_free(gpu, &w[j]), op->free(gpu, out[j]);
    op->weight_free(gpu, &before);
    free(x0), free(row), free(g);
}

/* Those of a shape whose experts are loaded. */
static void check_arounds(struct data *d, const struct around *list, int n, const char *name)
{
    const struct kn_ops *op = kn_op(gpu);
    struct matrices router[2];
    struct kn_weight one[3];
    const struct matrices *const own[3] = {&d->gate, &d->up, &d->down};
    const struct kn_weight *const shared[3] = {&one[0], &one[1], &one[2]};
    for (int j = 0; j < 2; j++) {
        const size_t rows = j ? 1 : (size_t)d->s->n_mat, size = rows * (size_t)d->s->embd;
        router[j] = (struct matrices){.file = host_alloc(size * 4)};
        for (size_t i = 0; i < size; i++) ((float *)router[j].file)[i] = (float)((int32_t)rnd32() * 0x1p-33);
        must(gpu, "weight_load",
             op->weight_load(gpu, &router[j].w, KN_F32, d->s->embd, (int64_t)rows, router[j].file,
                             KN_USE_LINEAR));
    }
    for (int j = 0; j < 3; j++)
        must(gpu, "weight_load",
             op->weight_load(gpu, &one[j], own[j]->type, own[j]->n_in, own[j]->n_out, own[j]->file,
                             KN_USE_LINEAR));
    data_make(d, d->s, 1, MIXED);
    for (int i = 0; i < n; i++)
        if (list[i].s == d->s && strstr(list[i].name, name)) check_around(list + i, d, router, shared);
    data_free(d);
    for (int j = 0; j < 3; j++) op->weight_free(gpu, &one[j]);
    for (int j = 0; j < 2; j++) matrices_free(&router[j]);
}

static bool any_around(const struct around *list, int n, const struct shape *s, const char *name)
{
    for (int i = 0; i < n; i++)
        if (list[i].s == s && strstr(list[i].name, name)) return true;
    return false;
}

/* name: of those alone that have it in their names. small: of little shapes alone. */
static void check_all_around(const char *name, bool small)
{
    static const struct shape shapes[] = {
        {"256 of [512, 2048]", 256, 8, 2048, 512, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"256 of [512, 2048], down Q6_K", 256, 8, 2048, 512, KN_Q4_K, KN_Q6_K, KN_ACT_SILU},
        {"64 of [768, 2048]", 64, 8, 2048, 768, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"12 of [256, 512]", 12, 3, 512, 256, KN_Q5_K, KN_Q6_K, KN_ACT_SILU},
        {"20 of [512, 2816]", 20, 8, 2816, 512, KN_Q4_K, KN_Q4_K, KN_ACT_GELU_TANH}};
    const struct around all[] = {
        {"a delta net of 35B-A3B",
         shapes,
         true,
         KN_Q4_K,
         4096,
         4,
         {KN_Q4_K, KN_Q4_K, KN_Q4_K, KN_Q4_K},
         {8192, 4096, 32, 32}},
        {"attention of 35B-A3B",
         shapes,
         true,
         KN_Q4_K,
         4096,
         4,
         {KN_Q4_K, KN_Q4_K, KN_Q4_K, KN_Q6_K},
         {4096, 4096, 512, 512}},
        {"before Q6_K, behind Q5_K", shapes, true, KN_Q6_K, 4096, 1, {KN_Q5_K}, {4104}},
        {"a delta net, Q6_K",
         shapes + 1,
         true,
         KN_Q4_K,
         4096,
         4,
         {KN_Q6_K, KN_Q4_K, KN_Q4_K, KN_Q4_K},
         {8192, 4096, 32, 32}},
        {"before Q5_K, none shared", shapes + 1, false, KN_Q5_K, 2048, 2, {KN_Q6_K, KN_Q8_0}, {1000, 40}},
        {"attention of 30B-A3B",
         shapes + 2,
         false,
         KN_Q4_K,
         4096,
         3,
         {KN_Q4_K, KN_Q4_K, KN_Q6_K},
         {4096, 512, 512}},
        {"before Q6_K, long",
         shapes + 2,
         false,
         KN_Q6_K,
         8192,
         3,
         {KN_Q4_K, KN_Q5_K, KN_Q6_K},
         {4096, 512, 24}},
        {"too many behind", shapes + 2, false, KN_Q4_K, 2560, 1, {KN_Q4_K}, {20000}},
        {"few blocks", shapes + 3, true, KN_Q4_K, 768, 3, {KN_Q4_K, KN_Q5_K, KN_Q6_K}, {512, 130, 100}},
        {"few blocks, none shared", shapes + 3, false, KN_Q8_0, 768, 2, {KN_Q4_K, KN_Q4_K}, {512, 16}},
        {"11 units", shapes + 4, false, KN_Q4_K, 4096, 3, {KN_Q4_K, KN_Q4_K, KN_Q6_K}, {4096, 1024, 1024}}};
    if (strcmp(kn_op(gpu)->name, "cuda")) return;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = shapes + i;
        if ((small && s->embd > 512) || !any_around(all, (int)(sizeof all / sizeof *all), s, name)) continue;
        struct data d = {.s = s};
        d.gate = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.up = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.down = matrices_make(s->down, s->n_mat, s->embd, s->ff);
        check_arounds(&d, all, (int)(sizeof all / sizeof *all), name);
        matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
    }
}
