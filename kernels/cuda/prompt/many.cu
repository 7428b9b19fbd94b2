/* many.cu - see many.cuh: scratch, and the order of panels, products and what follows them.
 *
 * Bound, Qwen3-8B, 4,096 rows: 28.5 T multiply-adds = 70 ms at the library's 820 TFLOP/s; dequantising 7.0 G
 * weights twice (2,048 rows a pass) moves 2 x (4 + 14 + 14) GB, of which the 28 stay in the second-level
 * cache where panels are small. docs/speed/prompts.md has what was measured.
 *
 * Streams: side dequantises a panel while the library multiplies the one before; tail gates a part of gate
 * and up while the next is multiplied. Weights too small to fill the device by themselves (keys and values)
 * are multiplied as one.
 *
 * Wins over 64 rows at a time: a prompt of 512 rows of 8B 62 to 23.2 ms. dflash-bench rows -m
 * 8b-q4_k_m.gguf --device cuda --rows 1 --prompts 512,4096 */
#include "many_impl.cuh"

#include <stdlib.h>

#define GATE_BYTES ((size_t)64 << 20) /* outputs of gate and up, two parts */
#define PANEL_BYTES ((size_t)64 << 20)
#define SMALL_ROWS 2048 /* weights of up to so many rows are put together */
#define TILE_ROWS 768
#define WIDE_ROWS_MOST 128

struct many_tuning many_tuning = {.panel_bytes = PANEL_BYTES,
                                  .gate_bytes = GATE_BYTES,
                                  .rows = MANY_ROWS,
                                  .alone = false,
                                  .beside = true,
                                  .together = true,
                                  .tile_rows = TILE_ROWS,
                                  .wide_rows = WIDE_ROWS_MOST,
                                  .tile = -1};

/* ---- scratch ---- */

static int64_t padded(int64_t n_in)
{
    return (n_in + 255) / 256 * 256;
}
static size_t whole(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}
/* Rows of f16: whole eights, and what a tile of rows may read behind the last of them. */
static size_t act_bytes(int32_t rows, int64_t n_in)
{
    return whole((size_t)(rows + 7) / 8 * 8 * (size_t)padded(n_in) * 2) + 256 * 128;
}
static size_t scratch_bytes(int32_t rows, int64_t n_in, size_t panel_bytes, size_t gate_bytes)
{
    return 2 * whole(panel_bytes) + act_bytes(rows, n_in) + whole((size_t)rows * 4) +
           2 * whole(gate_bytes / 2) + MANY_WORKSPACE;
}

static int open_streams(struct cuda_backend *be)
{
    struct many_state *m = be->many;
    cudaError_t err = cudaStreamCreateWithFlags(&m->side, cudaStreamNonBlocking);
    if (!err) err = cudaStreamCreateWithFlags(&m->tail, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && !err; i++) {
        cudaEvent_t *const events[] = {&m->ready[i], &m->done[i], &m->summed[i], &m->gated[i]};
        for (int j = 0; j < 4 && !err; j++) err = cudaEventCreateWithFlags(events[j], cudaEventDisableTiming);
    }
    return cuda_check(be, "streams of products", err);
}

void many_close(struct cuda_backend *be)
{
    struct many_state *m = be->many;
    if (!m) return;
    cudaDeviceSynchronize();
    cudaFree(m->all);
    for (int i = 0; i < 2; i++) {
        const cudaEvent_t events[] = {m->ready[i], m->done[i], m->summed[i], m->gated[i]};
        for (int j = 0; j < 4; j++)
            if (events[j]) cudaEventDestroy(events[j]);
    }
    if (m->side) cudaStreamDestroy(m->side);
    if (m->tail) cudaStreamDestroy(m->tail);
    many_lt_close(m->lt);
    free(m);
    be->many = nullptr;
}

static int open_many(struct cuda_backend *be)
{
    be->many = (struct many_state *)calloc(1, sizeof *be->many);
    if (!be->many) return cuda_fail(be, KN_EMEM, "out of memory (%zu bytes)", sizeof *be->many);
    int rc = many_lt_open(be, &be->many->lt);
    if (rc == 0) rc = open_streams(be);
    if (rc) many_close(be);
    return rc;
}

#ifdef DFLASH_CUBLAS
#define BUILT true
#else
#define BUILT false /* the row kernels, 64 rows at a time */
#endif

size_t many_bytes(int32_t n, int64_t n_in)
{
    return !BUILT || n < MANY_MIN ? 0
                                  : scratch_bytes(n < many_tuning.rows ? n : many_tuning.rows, n_in,
                                                  many_tuning.panel_bytes, many_tuning.gate_bytes);
}

int many_reserve(struct cuda_backend *be, int32_t n, int64_t n_in)
{
    if (!BUILT || n < MANY_MIN) return 0;
    if (n > many_tuning.rows) n = many_tuning.rows;
    const int bad = be->many ? 0 : open_many(be);
    if (bad) return bad;
    struct many_state *m = be->many;
    if (m->all && n <= m->rows && n_in <= m->n_in && m->panel_bytes == many_tuning.panel_bytes &&
        m->gate_bytes == many_tuning.gate_bytes)
        return 0;
    if (n < m->rows) n = m->rows;
    if (n_in < m->n_in) n_in = m->n_in;
    cudaDeviceSynchronize();
    cudaFree(m->all);
    m->all = nullptr;
    m->rows = 0;
    const size_t panel = whole(many_tuning.panel_bytes), gate = whole(many_tuning.gate_bytes / 2);
    uint8_t *p = nullptr;
    const int rc = cuda_check(be, "scratch of products of more than 64 rows",
                              cudaMalloc(&p, scratch_bytes(n, n_in, panel, many_tuning.gate_bytes)));
    if (rc) return rc;
    m->all = p;
    for (int i = 0; i < 2; i++) m->panel[i] = p, p += panel;
    for (int i = 0; i < 2; i++) m->sums[i] = (float *)p, p += gate;
    m->act = (__half *)p, p += act_bytes(n, n_in);
    m->factor = (float *)p, p += whole((size_t)n * 4);
    m->workspace = p;
    m->rows = n;
    m->n_in = n_in;
    m->panel_bytes = many_tuning.panel_bytes;
    m->gate_bytes = many_tuning.gate_bytes;
    return 0;
}

bool many_wanted(const struct cuda_backend *be, int32_t n)
{
    return be->many && be->many->all && n >= MANY_MIN;
}

bool many_by_rows(const struct cuda_backend *be, const struct mm_product *p)
{
    const struct cuda_device dev = cuda_device_of(be);
    bool all = p->n > MM_PREP_ROWS && p->n <= many_tuning.wide_rows;
    for (int32_t j = 0; j < p->n_w && all; j++)
        all = mm_wide_format(&dev, product_type_of(p->w[j]->type)->act, MM_PREP_ROWS);
    return all;
}

/* ---- panels ---- */

float many_power(int e)
{
    return e < -126 ? 0x1p-126f : e > 127 ? 0x1p127f : __builtin_ldexpf(1.0f, e);
}
int many_scale_exponent(const struct kn_weight *w)
{
    const int e = 14 - w->exponent;
    return e > 100 ? 100 : e < -100 ? -100 : e;
}

/* Rows first .. of a weight to f16 at dst, times 2^exponent, on the side stream. */
static cudaError_t dequantise(struct cuda_backend *be, const struct kn_weight *w, int32_t first, int32_t rows,
                              int exponent, __half *dst)
{
    struct panel_args a = many_panel_args(w, first, rows);
    a.dst = dst;
    a.scale = many_power(exponent);
    return many_unpack(be, many_tuning.alone ? be->stream : be->many->side, w->type, &a);
}

/* The product g, but for its w: rows first .. first + rows - 1 (rows 0: all) of the `count` weights from j
 * on, times 2^e, one below the other from multiples of 16 on. They go to the half of the panels that comes
 * next, which is free once the product that read it last is done. */
static int multiply(struct cuda_backend *be, const struct mm_product *p, int j, int count, int32_t first,
                    int32_t rows, int e, struct gemm g)
{
    struct many_state *m = be->many;
    const bool beside = !many_tuning.alone;
    __half *to = (__half *)m->panel[m->turn];
    cudaError_t err = beside ? cudaStreamWaitEvent(m->side, m->done[m->turn], 0) : cudaSuccess;
    g.w = to;
    for (int i = 0; i < count && !err; i++) {
        const int32_t some = rows ? rows : (int32_t)p->w[j + i]->n_out;
        err = dequantise(be, p->w[j + i], first, some, e, to);
        to += (some + 15) / 16 * 16 * g.k;
    }
    if (!err && beside) err = cudaEventRecord(m->ready[m->turn], m->side);
    if (!err && beside) err = cudaStreamWaitEvent(be->stream, m->ready[m->turn], 0);
    int rc = cuda_check(be, p->name, err);
    if (rc == 0) rc = many_lt_multiply(be, p->name, &g, p->n);
    if (rc == 0 && beside) rc = cuda_check(be, p->name, cudaEventRecord(m->done[m->turn], be->stream));
    m->turn ^= 1;
    return rc;
}

/* Rows a panel: as many as fit, in equal parts of whole 256. */
static int32_t panel_rows(int64_t n_out, int64_t room)
{
    const int64_t most = room < 256 ? room / 16 * 16 : room / 256 * 256;
    if (most < 16) return 0;
    const int64_t parts = (n_out + most - 1) / most, even = (n_out + parts - 1) / parts;
    return (int32_t)(room < 256 ? most : (even + 255) / 256 * 256);
}

static int too_long(struct cuda_backend *be, const struct mm_product *p)
{
    return cuda_fail(be, KN_ETYPE, "%s: rows of %lld values are too long", p->name, (long long)p->w[0]->n_in);
}

/* ---- gate and up ---- */

/* Sums of gate and up of rows first .., to act(gate) * up, beside the next part's product. */
static cudaError_t gate_part(struct cuda_backend *be, const struct mm_product *p, int32_t first, int32_t some,
                             int32_t height)
{
    struct many_state *m = be->many;
    const int t = m->sums_turn;
    const struct gate_args v = {m->sums[t], m->factor, p->out[0] + first, p->w[0]->n_out,
                                height,     some,      (int32_t)p->act};
    m->sums_turn ^= 1;
    if (!many_tuning.beside) return many_gate(be, be->stream, &v, p->n);
    cudaError_t err = cudaEventRecord(m->summed[t], be->stream);
    if (!err) err = cudaStreamWaitEvent(m->tail, m->summed[t], 0);
    if (!err) err = many_gate(be, m->tail, &v, p->n);
    return err ? err : cudaEventRecord(m->gated[t], m->tail);
}

static int run_gated(struct cuda_backend *be, const struct mm_product *p, int64_t ld)
{
    struct many_state *m = be->many;
    const int64_t n_out = p->w[0]->n_out, a = (int64_t)(m->panel_bytes / (size_t)(4 * ld)),
                  b = (int64_t)(m->gate_bytes / 2 / (size_t)(8 * p->n));
    const int32_t rows = panel_rows(n_out, a < b ? a : b);
    if (!rows) return too_long(be, p);
    /* One product for both: they share a scale. */
    const int e0 = many_scale_exponent(p->w[0]), e1 = many_scale_exponent(p->w[1]), e = e0 < e1 ? e0 : e1;
    for (int32_t first = 0; first < n_out; first += rows) {
        const int32_t some = (int32_t)(n_out - first < rows ? n_out - first : rows),
                      height = (some + 15) / 16 * 16;
        int rc = 0;
        if (many_tuning.beside)
            rc = cuda_check(be, p->name, cudaStreamWaitEvent(be->stream, m->gated[m->sums_turn], 0));
        if (rc == 0)
            rc = multiply(
                be, p, 0, 2, first, some, e,
                {2 * height, ld, 2 * height, nullptr, m->act, m->sums[m->sums_turn], many_power(-e), 0.0f});
        if (rc == 0) rc = cuda_check(be, p->name, gate_part(be, p, first, some, height));
        if (rc) return rc;
    }
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < 2 && !err && many_tuning.beside; i++)
        err = cudaStreamWaitEvent(be->stream, m->gated[i], 0);
    return cuda_check(be, p->name, err);
}

/* ---- one weight, and several small ones ---- */

static int run_one(struct cuda_backend *be, const struct mm_product *p, int j, int64_t ld)
{
    struct many_state *m = be->many;
    const struct kn_weight *w = p->w[j];
    const int32_t rows = panel_rows(w->n_out, (int64_t)(m->panel_bytes / (size_t)(2 * ld)));
    const int e = many_scale_exponent(w);
    if (!rows) return too_long(be, p);
    for (int32_t first = 0; first < w->n_out; first += rows) {
        const int32_t some = (int32_t)(w->n_out - first < rows ? w->n_out - first : rows);
        const int rc = multiply(
            be, p, j, 1, first, some, e,
            {some, ld, w->n_out, nullptr, m->act, p->out[j] + first, many_power(-e), p->add ? 1.0f : 0.0f});
        if (rc) return rc;
    }
    const struct restore_args r = {{p->out[j]}, {w->n_out}, m->factor, 1};
    return cuda_check(be, p->name, many_restore(be, &r, p->n));
}

/* How many weights from j on are small and fit one panel and one half of the sums: 0 or 1 is nothing to gain.
 */
static int32_t count_small(const struct many_state *m, const struct mm_product *p, int32_t j, int64_t ld)
{
    int64_t height = 0;
    int32_t count = 0;
    if (p->add || !many_tuning.together) return 0;
    for (; j + count < p->n_w && p->w[j + count]->n_out <= SMALL_ROWS; count++) {
        height += (p->w[j + count]->n_out + 15) / 16 * 16;
        if ((size_t)(height * ld) * 2 > m->panel_bytes || (size_t)(height * p->n) * 4 > m->gate_bytes / 2)
            break;
    }
    return count;
}

static int run_small(struct cuda_backend *be, const struct mm_product *p, int32_t j, int32_t count,
                     int64_t ld)
{
    struct many_state *m = be->many;
    struct share_args v = {};
    int e = many_scale_exponent(p->w[j]);
    for (int32_t i = 0; i < count; i++) {
        const struct kn_weight *w = p->w[j + i];
        if (many_scale_exponent(w) < e) e = many_scale_exponent(w);
        v.out[i] = p->out[j + i];
        v.n_out[i] = (int32_t)w->n_out;
        v.width += (int32_t)((w->n_out + 15) / 16 * 16);
    }
    const int rc = multiply(be, p, j, count, 0, 0, e,
                            {v.width, ld, v.width, nullptr, m->act, m->sums[0], many_power(-e), 0.0f});
    v.sums = m->sums[0];
    v.factor = m->factor;
    v.n_w = count;
    return rc ? rc : cuda_check(be, p->name, many_share(be, &v, p->n));
}

int many_run(struct cuda_backend *be, const struct mm_product *p)
{
    struct many_state *m = be->many;
    const int64_t n_in = p->w[0]->n_in;
    int64_t ld = 0;
    if (p->n > m->rows || n_in > m->n_in)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows of %lld values, reserved are %d of %lld", p->name, p->n,
                         (long long)n_in, m->rows, (long long)m->n_in);
    for (int32_t j = 0; j < p->n_w; j++) { /* units of 32 and of 256 columns agree: n_in has whole blocks */
        const int64_t own = many_panel_args(p->w[j], 0, 16).ld;
        if (j && own != ld) return cuda_fail(be, KN_ETYPE, "%s: weights of unequal padding", p->name);
        ld = own;
    }
    const bool tiles = many_tiles(be, p);
    const struct act_args a = {
        p->x, p->norm,        m->act,        m->factor, p->add && !tiles ? p->out[0] : nullptr,
        ld,   p->w[0]->n_out, (int32_t)n_in, p->eps,    tiles ? (p->n + 7) / 8 * 8 : 0};
    int rc = cuda_check(be, p->name, many_prepare(be, &a, p->n));
    if (tiles) {
        const struct tile_act act = {m->act, m->factor, a.pad};
        return rc ? rc : cuda_check(be, p->name, many_tile_run(be, p, &act));
    }
    cuda_count(be, CUDA_PRODUCT_LIBRARY);
    if (rc == 0 && p->gated) return run_gated(be, p, ld);
    for (int32_t j = 0; j < p->n_w && rc == 0;) {
        const int32_t small = count_small(m, p, j, ld);
        rc = small > 1 ? run_small(be, p, j, small, ld) : run_one(be, p, j, ld);
        j += small > 1 ? small : 1;
    }
    return rc;
}
