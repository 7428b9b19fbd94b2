/* chain_wide.h - of chain_gpu.c: layers as Gemma's, with norms behind their products, windows, heads of 256
 * and 512, values that are normed or made of the keys' projection. */
struct wide_shape {
    const char *name;
    int64_t hidden, ff;
    int32_t n_head, d[2], n_kv[2], cap[2]; /* of sliding layers, of full ones */
    int32_t window, layers, period;        /* layer i is full where (i + 1) % period is 0 */
    uint32_t o, gate, down, qk, v, cache;
    bool norms, same, small; /* same: full layers have no v */
};
static const struct wide_shape wide_shapes[] = {
    {"512 768, 256 and 512",
     512,
     768,
     4,
     {256, 512},
     {2, 1},
     {256, 1024},
     100,
     4,
     2,
     K4,
     K4,
     K4,
     K4,
     K4,
     KN_F16,
     true,
     true,
     true},
    {"768 512, 256 alone",
     768,
     512,
     6,
     {256, 256},
     {6, 3},
     {256, 1280},
     64,
     3,
     3,
     K5,
     K6,
     K5,
     K6,
     K5,
     KN_BF16,
     false,
     false,
     true},
    {"1280 2304, 16 heads over 1",
     1280,
     2304,
     16,
     {256, 512},
     {1, 2},
     {1280, 4096},
     1025,
     4,
     2,
     K6,
     K5,
     K6,
     K4,
     K6,
     KN_BF16,
     true,
     true,
     true},
    {"2304 1280, 128 and 512",
     2304,
     1280,
     8,
     {128, 512},
     {4, 4},
     {768, 1536},
     513,
     3,
     2,
     K4,
     K4,
     K6,
     K4,
     K6,
     KN_F16,
     true,
     false,
     true},
    {"Gemma-4-31B",
     5376,
     21504,
     32,
     {256, 512},
     {16, 4},
     {1280, 4096},
     1024,
     6,
     3,
     K4,
     K4,
     K6,
     K4,
     K6,
     KN_F16,
     true,
     true,
     false},
};
struct wide_layer {
    struct kn_weight o, gate, up, down, q, k, v;
    struct kn_kv kv;
    float *attn_norm, *post_attn, *ffn_norm, *post_ffw, *q_norm, *k_norm;
};
enum { WIDE_LAYERS = 12 };
struct wide_model {
    const struct wide_shape *s;
    struct wide_layer l[WIDE_LAYERS];
    float *x, *y, *q, *k, *v, *attn, *h, *table[2], *taps; /* taps: [layers][hidden] */
    int32_t *pos;
};

static int wide_full(const struct wide_shape *s, int i)
{
    return (i + 1) % s->period == 0;
}
static void *wide_ring(const struct wide_shape *s, size_t n)
{
    uint16_t *h = take(2 * n);
    const size_t own = n < PERIOD ? n : PERIOD;
    for (size_t i = 0; i < own; i++)
        h[i] = (uint16_t)((rnd() & 0x83ff) |
                          (s->cache == KN_F16 ? 0x3400 + (rnd() % 3 << 10) : 0x3e00 + (rnd() % 2 << 8)));
    for (size_t i = own; i < n; i += own) memcpy(h + i, h, 2 * (n - i < own ? n - i : own));
    void *p = kn_op(gpu)->alloc(gpu, 2 * n);
    if (!p) must("alloc", KN_EMEM);
    must("upload", kn_op(gpu)->upload(gpu, p, h, 2 * n));
    free(h);
    return p;
}

static void wide_make(struct wide_model *m, const struct wide_shape *s)
{
    int64_t q_most = 0, kv_most = 0;
    m->s = s;
    for (int i = 0; i < s->layers; i++) {
        struct wide_layer *l = &m->l[i];
        const int f = wide_full(s, i);
        const int64_t d = s->d[f], q = d * s->n_head, kv = d * s->n_kv[f];
        const size_t ring = (size_t)s->cap[f] * (size_t)kv;
        q_most = q > q_most ? q : q_most, kv_most = kv > kv_most ? kv : kv_most;
        *l = (struct wide_layer){0};
        l->o = weight(s->o, q, s->hidden);
        l->down = weight(i % 2 ? s->gate : s->down, s->ff, s->hidden); /* as Q4_K_M has it */
        l->gate = weight(s->gate, s->hidden, s->ff), l->up = weight(s->gate, s->hidden, s->ff);
        l->q = weight(s->qk, s->hidden, q), l->k = weight(s->qk, s->hidden, kv);
        if (!(f && s->same)) l->v = weight(i % 2 ? s->qk : s->v, s->hidden, kv);
        l->kv = (struct kn_kv){wide_ring(s, ring), wide_ring(s, ring), {s->cache, s->cache},
                               s->cap[f],          s->n_kv[f],         (int32_t)d};
        l->attn_norm = random_row(s->hidden, 1.0f), l->ffn_norm = random_row(s->hidden, 1.0f);
        l->post_attn = random_row(s->hidden, 1.0f), l->post_ffw = random_row(s->hidden, 1.0f);
        l->q_norm = random_row(d, 1.0f), l->k_norm = random_row(d, 1.0f);
        must("reserve_kv", kn_op(gpu)->reserve_kv(gpu, 1, s->n_head, &l->kv, f ? 0 : s->window));
    }
    m->x = put(NULL, (size_t)s->hidden), m->y = put(NULL, (size_t)s->hidden);
    m->q = put(NULL, (size_t)q_most), m->k = put(NULL, (size_t)kv_most), m->v = put(NULL, (size_t)kv_most);
    m->attn = put(NULL, (size_t)q_most), m->h = put(NULL, (size_t)s->ff);
    m->taps = put(NULL, (size_t)(s->layers * s->hidden));
    m->pos = (int32_t *)put(NULL, 1);
    for (int f = 0; f < 2; f++) {
        float turns[512];
        for (int i = 0; i < s->d[f] / 2; i++) {
            const double angle = f && i >= s->d[f] / 8 ? 0 : rnd() * 1e-6;
            turns[2 * i] = (float)cos(angle), turns[2 * i + 1] = (float)sin(angle);
        }
        m->table[f] = put(turns, (size_t)s->d[f]);
    }
}
static void wide_unmake(struct wide_model *m)
{
    for (int i = 0; i < m->s->layers; i++) {
        struct wide_layer *l = &m->l[i];
        struct kn_weight *w[] = {&l->o, &l->gate, &l->up, &l->down, &l->q, &l->k, &l->v};
        void *p[] = {l->kv.k,     l->kv.v,     l->attn_norm, l->post_attn,
                     l->ffn_norm, l->post_ffw, l->q_norm,    l->k_norm};
        for (size_t j = 0; j < sizeof w / sizeof *w; j++)
            if (w[j]->n_in) kn_op(gpu)->weight_free(gpu, w[j]);
        for (size_t j = 0; j < sizeof p / sizeof *p; j++) kn_op(gpu)->free(gpu, p[j]);
    }
    void *p[] = {m->x, m->y, m->q, m->k, m->v, m->attn, m->h, m->pos, m->table[0], m->table[1], m->taps};
    for (size_t j = 0; j < sizeof p / sizeof *p; j++) kn_op(gpu)->free(gpu, p[j]);
}

/* What norm_add's row is for is said, as the family says it. */
static void wide_run(struct wide_model *m)
{
    const struct wide_shape *s = m->s;
    for (int i = 0; i < s->layers; i++) {
        struct wide_layer *l = &m->l[i];
        const int f = wide_full(s, i);
        const bool same = f && s->same;
        float *const out[] = {m->q, m->k, m->v};
        const struct kn_weight *const w[] = {&l->q, &l->k, &l->v};
        const struct kn_rope_store store = {.q = m->q,
                                            .k = m->k,
                                            .v = same ? m->k : m->v,
                                            .v_norm = s->norms,
                                            .q_norm = s->norms ? l->q_norm : NULL,
                                            .k_norm = s->norms ? l->k_norm : NULL,
                                            .table = m->table[f],
                                            .pos = m->pos,
                                            .n = 1,
                                            .n_head = s->n_head,
                                            .n_rot = s->d[f],
                                            .eps = 1e-6f,
                                            .kv = &l->kv};
        const struct kn_attention attention = {.q = m->q,
                                               .out = m->attn,
                                               .kv = &l->kv,
                                               .pos = m->pos,
                                               .n = 1,
                                               .n_head = s->n_head,
                                               .scale = s->norms ? 1.0f : 0.0625f,
                                               .causal = true,
                                               .window = f ? 0 : s->window,
                                               .then = &l->o};
        must("norm_linear", kn_op(gpu)->norm_linear(gpu, out, w, same ? 2 : 3, m->x, l->attn_norm, 1e-6f, 1));
        must("attend", kn_op(gpu)->attend(gpu, &store, &attention));
        must("linear", kn_op(gpu)->linear(gpu, m->y, &l->o, m->attn, 1, false));
        kn_next(gpu, &l->gate, l->ffn_norm);
        must("norm_add",
             kn_op(gpu)->norm_add(gpu, m->x, m->x, m->y, l->post_attn, 1, s->hidden, 1e-6f, 1.0f));
        must("norm_gated", kn_op(gpu)->norm_gated(gpu, m->h, &l->gate, &l->up, m->x, l->ffn_norm, 1e-6f,
                                                  KN_ACT_GELU_TANH, 1));
        must("linear", kn_op(gpu)->linear(gpu, m->y, &l->down, m->h, 1, false));
        if (i + 1 < s->layers) kn_next(gpu, &m->l[i + 1].q, m->l[i + 1].attn_norm);
        must("norm_add", kn_op(gpu)->norm_add(gpu, m->x, m->x, m->y, l->post_ffw, 1, s->hidden, 1e-6f,
                                              i % 3 ? 0.75f : 1.0f));
        tap(m->taps, m->x, s->hidden, i, s->layers);
    }
}
/* What a pass leaves: x, y, attn, h, taps, keys and values at pos of all layers. */
static uint8_t *wide_results(struct wide_model *m, const float *x, int32_t pos, int times, bool recorded,
                             size_t *n)
{
    const struct wide_shape *s = m->s;
    const int last = wide_full(s, s->layers - 1);
    const size_t sizes[] = {4 * (size_t)s->hidden, 4 * (size_t)s->hidden,
                            4 * (size_t)(s->d[last] * s->n_head), 4 * (size_t)s->ff,
                            4 * (size_t)(s->layers * s->hidden)};
    const void *from[] = {m->x, m->y, m->attn, m->h, m->taps};
    int32_t bound = 64;
    while (bound <= pos) bound *= 2;
    kn_bound(gpu, bound);
    must("upload", kn_op(gpu)->upload(gpu, m->x, x, sizes[0]));
    must("upload", kn_op(gpu)->upload(gpu, m->pos, &pos, sizeof pos));
    wipe(m->taps, sizes[4]);
    if (recorded) {
        void *rec = NULL;
        must("record_begin", kn_op(gpu)->record_begin(gpu));
        wide_run(m);
        must("record_end", kn_op(gpu)->record_end(gpu, &rec));
        for (int i = 0; i < times; i++) must("replay", kn_op(gpu)->replay(gpu, rec));
        must("sync", kn_op(gpu)->sync(gpu));
        kn_op(gpu)->record_free(gpu, rec);
    } else {
        for (int i = 0; i < times; i++) wide_run(m);
    }
    *n = sizes[0] + sizes[1] + sizes[2] + sizes[3] + sizes[4];
    for (int i = 0; i < s->layers; i++) *n += 4 * (size_t)(s->d[wide_full(s, i)] * s->n_kv[wide_full(s, i)]);
    uint8_t *all = take(*n), *to = all;
    for (int i = 0; i < 5; to += sizes[i++])
        must("download", kn_op(gpu)->download(gpu, to, from[i], sizes[i]));
    for (int i = 0; i < 2 * s->layers; i++) {
        const struct kn_kv *kv = &m->l[i / 2].kv;
        const size_t row = 2 * (size_t)(kv->n_head_kv * kv->head_dim);
        const uint8_t *p = i % 2 ? kv->v : kv->k;
        must("download", kn_op(gpu)->download(gpu, to, p + (size_t)(pos % kv->cap) * row, row));
        to += row;
    }
    kn_bound(gpu, 0);
    return all;
}
static void wide_compare(struct wide_model *m, const float *x, int32_t pos, int times, bool recorded,
                         const char *what)
{
    size_t n;
    tapped = pos % 2 || times > 3;
    chain_tuning.off = 1;
    const long before = chain_launched;
    uint8_t *want = wide_results(m, x, pos, times, recorded, &n);
    const long plain = chain_launched;
    chain_tuning.off = 0;
    uint8_t *got = wide_results(m, x, pos, times, recorded, &n);
    const bool taken = plain == before && chain_launched == plain + (recorded ? 1 : times);
    compare_words(&(struct compared){m->s->name, what, pos, times, recorded, taken, false}, want, got, n,
                  m->s->hidden);
    free(want), free(got);
}
static void check_wide(const struct wide_shape *s, bool quick)
{
    const int32_t w = s->window, c = s->cap[0],
                  positions[] = {0,     1,    31,    32,     63,           64,     65,        w - 2,
                                 w - 1, w,    w + 1, w + 62, w + 64,       511,    512,       513,
                                 c - 1, c,    c + 1, 1023,   1024,         c + 63, 2 * c - 1, 2 * c + 130,
                                 1535,  2047, 2048,  3000,   s->cap[1] - 1};
    static struct wide_model m;
    wide_make(&m, s);
    float *x = values((size_t)s->hidden, 1.0f);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        if (positions[i] >= s->cap[1] || positions[i] < 0 || (quick && i % 3)) continue;
        wide_compare(&m, x, positions[i], 1, false, "");
    }
    wide_compare(&m, x, 100, 3, true, "");
    if (!quick) wide_compare(&m, x, s->cap[1] - 7, 200, true, "");
    x[3] = (float)(0.0 * HUGE_VAL);
    wide_compare(&m, x, 70, 1, false, "a NaN,");
    free(x);
    wide_unmake(&m);
}

/* As stress of chain_gpu.c. */
static void stress_wide(const struct wide_shape *s, int n)
{
    static struct wide_model m;
    const int kept = chain_tuning.wide_ahead, split = chain_tuning.split, normed = chain_tuning.split_normed;
    wide_make(&m, s);
    float *x = values((size_t)s->hidden, 1.0f);
    for (int i = 0; i < n; i++) {
        const int32_t pos = (int32_t)(rnd() % (uint32_t)s->cap[1]);
        char what[64];
        chain_tuning.wide_ahead = i % 3 ? 20000 + (int)(rnd() % 90000) : 0;
        chain_tuning.split = chain_tuning.split_normed = i % 4; /* 0: never */
        snprintf(what, sizeof what, "%d bytes ahead,", chain_tuning.wide_ahead);
        wide_compare(&m, x, pos, 150, true, what);
    }
    chain_tuning.wide_ahead = kept, chain_tuning.split = split, chain_tuning.split_normed = normed;
    free(x);
    wide_unmake(&m);
}

static void bench_wide(const struct wide_shape *of)
{
    static struct wide_model m;
    struct wide_shape longer = *of, *s = &longer;
    s->layers = WIDE_LAYERS, s->period = 6;
    wide_make(&m, s);
    float *x = values((size_t)s->hidden, 1.0f);
    double bytes = 0;
    for (int i = 0; i < s->layers; i++) {
        const struct wide_layer *l = &m.l[i];
        const struct kn_weight *w[] = {&l->o, &l->gate, &l->up, &l->down, &l->q, &l->k, &l->v};
        for (size_t j = 0; j < sizeof w / sizeof *w; j++)
            if (w[j]->n_in) bytes += (double)kn_row_bytes(w[j]->type, w[j]->n_in) * (double)w[j]->n_out;
    }
    static const int contexts[] = {512, 2048, 4096}, ahead[] = {-1, 110000, 0, 64512};
    for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++)
        for (size_t k = 0; k < (c ? 2 : sizeof ahead / sizeof *ahead); k++) {
            const int32_t pos = contexts[c] - 2;
            const int kept = chain_tuning.wide_ahead;
            void *rec = NULL;
            chain_tuning.off = ahead[k] < 0;
            if (ahead[k] >= 0) chain_tuning.wide_ahead = ahead[k];
            kn_bound(gpu, contexts[c]);
            must("upload", kn_op(gpu)->upload(gpu, m.x, x, 4 * (size_t)s->hidden));
            must("upload", kn_op(gpu)->upload(gpu, m.pos, &pos, sizeof pos));
            must("record_begin", kn_op(gpu)->record_begin(gpu));
            for (int i = 0; i < 2; i++) wide_run(&m);
            must("record_end", kn_op(gpu)->record_end(gpu, &rec));
            double best = 1e9;
            for (int i = 0; i < 12; i++) {
                const double t = now();
                for (int j = 0; j < 10; j++) must("replay", kn_op(gpu)->replay(gpu, rec));
                must("sync", kn_op(gpu)->sync(gpu));
                const double d = (now() - t) / 10;
                if (i && d < best) best = d;
            }
            printf("%-20s context %5d %s %6d ahead: %7.2f us a layer, %.2f TB/s\n", s->name, contexts[c],
                   chain_tuning.off ? "launches" : "chain   ", ahead[k], 1e6 * best / (2 * s->layers),
                   2 * bytes / best * 1e-12);
            fflush(stdout);
            kn_op(gpu)->record_free(gpu, rec);
            chain_tuning.wide_ahead = kept, chain_tuning.off = 0;
            kn_bound(gpu, 0);
        }
    free(x);
    wide_unmake(&m);
}
