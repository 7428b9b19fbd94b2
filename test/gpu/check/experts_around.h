/* experts_around.h - of experts_gpu.c: what stands around a mixture of one row. The product before it and
 * those behind it are taken into its launch (kernels/cuda/experts/whole.cu); the bits are those of launches
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

enum { AROUND_ROWS = 24 };

/* The weights and rows of one of them; bytes: of what a row leaves, x, its tap and the products of it. */
struct around_data {
    const struct around *r;
    struct kn_weight before, w[4];
    float *out[4], *x, *row, *gate; /* out: on the device */
    size_t bytes;
};

static struct around_data around_make(const struct around *r)
{
    const size_t embd = (size_t)r->s->embd, n = AROUND_ROWS * (size_t)r->width;
    struct around_data a = {.r = r, .before = dense(r->before, r->s->embd, r->width), .bytes = embd * 8};
    a.x = host_alloc(embd * 4), a.row = host_alloc(n * 4), a.gate = host_alloc(n * 4);
    for (int j = 0; j < r->n_w; j++) {
        a.w[j] = dense(r->types[j], r->n_out[j], r->s->embd);
        a.out[j] = put(gpu, NULL, (size_t)r->n_out[j] * 4);
        a.bytes += (size_t)r->n_out[j] * 4;
    }
    for (size_t i = 0; i < embd; i++) a.x[i] = (float)((int32_t)rnd32() * 0x1p-31);
    for (size_t i = 0; i < n; i++)
        a.row[i] = (float)((int32_t)rnd32() * 0x1p-31), a.gate[i] = (float)((int32_t)rnd32() * 0x1p-29);
    return a;
}

static void around_free(struct around_data *a)
{
    for (int j = 0; j < a->r->n_w; j++) kn_op(gpu)->weight_free(gpu, &a->w[j]), drop(gpu, a->out[j]);
    kn_op(gpu)->weight_free(gpu, &a->before);
    free(a->x), free(a->row), free(a->gate);
}

/* What all rows leave; m: the mixture, but for x. */
static uint8_t *around_run(const struct around_data *a, struct kn_mixture m)
{
    const struct around *r = a->r;
    const size_t embd = (size_t)r->s->embd, width = (size_t)r->width, bytes = AROUND_ROWS * width * 4;
    float *x = put(gpu, a->x, embd * 4), *tap = put(gpu, NULL, 3 * embd * 4), *row = put(gpu, a->row, bytes),
          *gate = put(gpu, a->gate, bytes);
    uint8_t *left = host_alloc(AROUND_ROWS * a->bytes), *to = left;
    const struct kn_weight *list[4];
    for (int j = 0; j < r->n_w; j++) list[j] = &a->w[j];
    m.x = m.out = x;
    for (size_t i = 0; i < AROUND_ROWS; i++) {
        must(gpu, "gate_linear",
             kn_op(gpu)->gate_linear(gpu, x, &a->before, row + i * width, gate + i * width, 1));
        must(gpu, "mixture", kn_op(gpu)->mixture(gpu, &m));
        must(gpu, "tap", kn_op(gpu)->tap(gpu, tap, (int64_t)(3 * embd), (int64_t)embd, x, 1, (int64_t)embd));
        must(gpu, "norm_linear",
             kn_op(gpu)->norm_linear(gpu, (float *const *)a->out, list, r->n_w, x, m.norm, eps, 1));
        fetch(to, x, embd * 4), fetch(to + embd * 4, tap + embd, embd * 4);
        to += embd * 8;
        for (int j = 0; j < r->n_w; to += r->n_out[j++] * 4) fetch(to, a->out[j], (size_t)r->n_out[j] * 4);
    }
    drop(gpu, x), drop(gpu, tap), drop(gpu, row), drop(gpu, gate);
    return left;
}

static void check_around(const struct around *r, struct data *d, const struct matrices *router,
                         const struct kn_weight *const *shared)
{
    static const int apart[4] = {3, 0, 1, 2};
    const struct shape *s = r->s;
    const size_t used = (size_t)s->used + (r->shared ? 1 : 0);
    struct around_data a = around_make(r);
    float *logits = put(gpu, NULL, (size_t)s->n_mat * 4), *gate = put(gpu, NULL, 4),
          *weights = put(gpu, NULL, used * 4), *h = put(gpu, NULL, used * (size_t)s->ff * 4);
    int32_t *ids = put(gpu, NULL, used * 4);
    struct kn_mixture m = {.route = {logits, 1, s->n_mat, s->used, true, 1, NULL, ids, weights},
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
                           .add = true};
    uint8_t *left[4];
    bool same[4], finite = true, tapped = true;
    for (int j = 0; r->shared && j < 3; j++) m.shared[j] = shared[j];
    if (r->shared) m.shared_gate = &router[1].w, m.shared_logits = gate;
    for (int how = 0; how < 4; how++) {
        experts_tuning.apart = apart[how];
        left[how] = around_run(&a, m);
        same[how] = !memcmp(left[how], left[0], AROUND_ROWS * a.bytes);
        for (size_t i = 0; i < AROUND_ROWS; i++)
            tapped &=
                !memcmp(left[how] + i * a.bytes, left[how] + i * a.bytes + s->embd * 4, (size_t)s->embd * 4);
    }
    experts_tuning.apart = 0;
    for (size_t i = 0; i < AROUND_ROWS * a.bytes / 4; i++)
        finite &= isfinite(((const float *)left[0])[i]) != 0;
    verdict(same[1] && same[2] && same[3] && finite && tapped, "around a mixture, %s, %d rows%s%s%s%s%s",
            r->name, AROUND_ROWS, same[1] ? "" : ", other bits in one launch",
            same[2] ? "" : ", with those behind alone", same[3] ? "" : ", with the one before alone",
            finite ? "" : ", not finite", tapped ? "" : ", a tap is not the row");
    for (int how = 0; how < 4; how++) free(left[how]);
    void *const device[] = {logits, gate, weights, h, ids};
    for (int i = 0; i < 5; i++) drop(gpu, device[i]);
    around_free(&a);
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
