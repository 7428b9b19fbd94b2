/* pack.cu - weights to the device: the file's bytes go through pinned memory in pieces of whole panels, and a
 * kernel re-tiles each piece (pack.cuh) into the streaming layout. Device memory taken: the bytes of the
 * file, rows rounded up to 16 and the columns of float types to 32; with KN_USE_ROWS, the file's rows as
 * well. */
#include "../core/copy.cuh"
#include "../experts/experts.cuh"
#include "../prompt/many.cuh"
#include "../core/ops.cuh"
#include "pack.cuh"

#include <string.h>

#define STAGE_BYTES ((size_t)8 << 20) /* one of the pieces */
#define STAGES 4

/* One thread a word of the packed panels. data: file layout of rows_total rows. */
__global__ void __launch_bounds__(256)
    pack_kernel(uint32_t *dst, const uint8_t *data, size_t row_bytes, int64_t n_in, uint32_t type,
                int32_t block_bytes, int32_t rows_total, int32_t units, int32_t unit_words, size_t words)
{
    cuda_grid_start();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        const size_t unit = i / (size_t)unit_words, panel = unit / (size_t)units;
        const mm_source m = {data + panel * 16 * row_bytes,
                             row_bytes,
                             rows_total - (int32_t)(16 * panel),
                             n_in,
                             type,
                             block_bytes};
        dst[i] = mm_word(m, (int64_t)(unit % (size_t)units), (int)(i % (size_t)unit_words));
    }
}

static int open_stage(struct cuda_backend *be)
{
    if (be->mm_raw) return 0;
    if (be->crew) copy_close(be->crew); /* of a call that failed */
    cudaFreeHost(be->mm_stage);
    be->mm_stage = nullptr;
    be->crew = copy_open();
    if (!be->crew) return cuda_fail(be, KN_EMEM, "out of memory (to load weights)");
    cudaError_t err = cudaMallocHost(&be->mm_stage, STAGES * STAGE_BYTES);
    if (!err) err = cudaMalloc(&be->mm_raw, STAGES * STAGE_BYTES);
    be->mm_stage_bytes = STAGE_BYTES;
    return cuda_check(be, "memory to load weights", err);
}

/* Rows first .. first + rows - 1, already at raw on the device. */
static cudaError_t place(struct cuda_backend *be, struct kn_weight *w, const uint8_t *raw, int64_t first,
                         int64_t rows)
{
    const struct kn_type_info *info = kn_type_info(w->type);
    const size_t row_bytes = kn_row_bytes(w->type, w->n_in);
    cudaError_t err = cudaSuccess;
    if (w->rows)
        err = cudaMemcpyAsync((uint8_t *)w->rows + (size_t)first * row_bytes, raw, (size_t)rows * row_bytes,
                              cudaMemcpyDeviceToDevice, be->stream);
    if (err || !w->packed) return err;
    const struct mm_type *t = product_type_of(w->type);
    const size_t panel = (size_t)mm_panel_bytes(t, w->n_in), words = (size_t)((rows + 15) / 16) * panel / 4;
    const size_t blocks = (words + 255) / 256, most = (size_t)be->sm_count * 64;
    return cuda_launch(be, pack_kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0,
                       (uint32_t *)((uint8_t *)w->packed + (size_t)(first / 16) * panel), raw, row_bytes,
                       w->n_in, w->type, (int32_t)info->bytes, (int32_t)rows,
                       (int32_t)(panel / (size_t)t->unit_bytes), t->unit_bytes / 4, words);
}

/* Through pieces of pinned memory in turn: the host's threads fill one while others are copied and packed. */
static cudaError_t stream_rows(struct cuda_backend *be, struct kn_weight *w, const uint8_t *data)
{
    const size_t row_bytes = kn_row_bytes(w->type, w->n_in);
    const int64_t piece = (int64_t)(be->mm_stage_bytes / (16 * row_bytes) * 16);
    cudaEvent_t done[STAGES] = {};
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < STAGES && !err; i++) err = cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming);
    int side = 0;
    for (int64_t first = 0; first < w->n_out && !err; first += piece, side = (side + 1) % STAGES) {
        const int64_t rows = w->n_out - first < piece ? w->n_out - first : piece;
        const size_t bytes = (size_t)rows * row_bytes;
        uint8_t *host = (uint8_t *)be->mm_stage + (size_t)side * be->mm_stage_bytes,
                *raw = (uint8_t *)be->mm_raw + (host - (uint8_t *)be->mm_stage);
        err = cudaEventSynchronize(done[side]);
        if (err) break;
        copy_run(be->crew, host, data + (size_t)first * row_bytes, bytes);
        err = cudaMemcpyAsync(raw, host, bytes, cudaMemcpyHostToDevice, be->stream);
        if (!err) err = place(be, w, raw, first, rows);
        if (!err) err = cudaEventRecord(done[side], be->stream);
    }
    const cudaError_t last = cudaStreamSynchronize(be->stream);
    for (int i = 0; i < STAGES; i++)
        if (done[i]) cudaEventDestroy(done[i]);
    return err ? err : last;
}

void cuda_weight_bytes(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use,
                       size_t *packed, size_t *rows)
{
    const struct mm_type *t = product_type_of(type);
    const size_t count = n_mat ? (size_t)n_mat : 1;
    *packed = (use & KN_USE_LINEAR) && t
                  ? count * (size_t)((n_out + 15) / 16) * (size_t)mm_panel_bytes(t, n_in)
                  : 0;
    *rows = (use & KN_USE_ROWS) ? count * (size_t)n_out * kn_row_bytes(type, n_in) + 16 : 0;
}

/* What a weight may be; fills all but its memory. */
static int describe(struct cuda_backend *be, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                    const void *data, unsigned use)
{
    const struct kn_type_info *info = kn_type_info(type);
    *w = {};
    w->type = type;
    w->n_in = n_in;
    w->n_out = n_out;
    if (!info) return cuda_fail(be, KN_ETYPE, "weight of unknown type number %u", type);
    if (n_in < 1 || n_out < 1 || !data || !(use & (KN_USE_LINEAR | KN_USE_ROWS)))
        return cuda_fail(be, KN_EINVAL, "weight [%lld, %lld] of %s: empty, without data, or without a use",
                         (long long)n_out, (long long)n_in, info->name);
    if (n_in % info->block)
        return cuda_fail(be, KN_ETYPE, "%s weight: rows of %lld elements are not whole blocks of %u",
                         info->name, (long long)n_in, info->block);
    if ((use & KN_USE_ROWS) && !info->can_decode)
        return cuda_fail(be, KN_ETYPE, "%s weight: the type cannot be decoded (rows)", info->name);
    if ((use & KN_USE_LINEAR) && !product_type_of(type))
        return cuda_fail(be, KN_ETYPE, "%s weight: no matrix product for this type", info->name);
    if (n_in > INT32_MAX - 64 || n_out > INT32_MAX - 16 || kn_row_bytes(type, n_in) > STAGE_BYTES / 16)
        return cuda_fail(be, KN_ETYPE, "weight [%lld, %lld] of %s: too large", (long long)n_out,
                         (long long)n_in, info->name);
    return 0;
}

static int take_memory(struct cuda_backend *be, struct kn_weight *w, unsigned use)
{
    size_t packed = 0, rows = 0;
    cudaError_t err = cudaSuccess;
    cuda_weight_bytes(w->type, w->n_in, w->n_out, w->n_mat - w->n_host, use, &packed, &rows);
    if (packed) err = cudaMalloc(&w->packed, packed);
    if (!err && rows) err = cudaMalloc((void **)&w->rows, rows);
    w->packed_bytes = packed;
    if (!err) return 0;
    const struct kn_weight shape = *w;
    cuda_weight_free((struct kn_backend *)be, w);
    cudaGetLastError();
    size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    return cuda_fail(
        be, KN_EMEM,
        "no device memory for %zu bytes of a weight [%d, %lld, %lld] of %s (%zu of %zu MiB free)",
        packed + rows, shape.n_mat ? shape.n_mat - shape.n_host : 1, (long long)shape.n_out,
        (long long)shape.n_in, kn_type_info(shape.type)->name, left >> 20, total >> 20);
}

int cuda_weight_load(struct kn_backend *kb, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                     const void *data, unsigned use)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = describe(be, w, type, n_in, n_out, data, use);
    if (rc == 0) rc = open_stage(be);
    if (rc == 0) rc = take_memory(be, w, use);
    if (rc) return rc;
    rc = cuda_check(be, "weight_load", stream_rows(be, w, (const uint8_t *)data));
    if (rc == 0 && w->packed) rc = many_exponent(be, w);
    if (rc) cuda_weight_free(kb, w);
    return rc;
}

/* ---- experts ---- */

/* Where the matrices lie that be->head wants in the host's memory, and all others; memory for the former. */
static int take_host(struct cuda_backend *be, struct kn_weight *w, int16_t *places)
{
    const int32_t *const ids = be->head.hosted, n = be->head.n_hosted;
    bool host[EXPERTS_MATRICES] = {};
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= w->n_mat || host[ids[i]] || n >= w->n_mat)
            return cuda_fail(
                be, KN_EINVAL,
                "experts_load: %d of %d experts for the host's memory, among them number %d (twice, "
                "or none of them)",
                n, w->n_mat, ids[i]);
        host[ids[i]] = true;
    }
    for (int32_t e = 0, here = 0, there = 0; e < w->n_mat; e++)
        places[e] = (int16_t)(host[e] ? ~there++ : here++);
    if (!n) return 0;
    size_t one, rows;
    cuda_weight_bytes(w->type, w->n_in, w->n_out, 1, KN_USE_LINEAR, &one, &rows);
    w->n_host = n;
    w->host = cuda_alloc_host((struct kn_backend *)be, (size_t)n * one);
    w->places = w->host ? (int16_t *)cuda_alloc((struct kn_backend *)be, 2 * (size_t)w->n_mat) : nullptr;
    if (!w->places) return KN_EMEM;
    return cuda_check(
        be, "experts_load",
        cudaMemcpyAsync(w->places, places, 2 * (size_t)w->n_mat, cudaMemcpyHostToDevice, be->stream));
}

/* Matrices of whole panels, all in one place, are one tall matrix; others are loaded one by one. */
static int fill_experts(struct cuda_backend *be, const struct kn_weight *w, const int16_t *places,
                        const uint8_t *data)
{
    const size_t file = (size_t)w->n_out * kn_row_bytes(w->type, w->n_in);
    const bool tall = w->n_out % 16 == 0 && !w->n_host;
    struct kn_weight part = *w;
    size_t one, rows;
    int rc = 0;
    cuda_weight_bytes(w->type, w->n_in, w->n_out, 1, KN_USE_LINEAR, &one, &rows);
    if (tall) part.n_out = w->n_out * w->n_mat;
    for (int32_t e = 0; e < (tall ? 1 : w->n_mat) && rc == 0; e++) {
        part.packed = places[e] < 0 ? (uint8_t *)w->host + (size_t)~places[e] * one
                                    : (uint8_t *)w->packed + (size_t)places[e] * one;
        rc = cuda_check(be, "experts_load", stream_rows(be, &part, data + (size_t)e * file));
    }
    return rc;
}

int cuda_experts_load(struct kn_backend *kb, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                      int32_t n_mat, const void *data)
{
    struct cuda_backend *be = cuda_of(kb);
    int16_t places[EXPERTS_MATRICES];
    int rc = describe(be, w, type, n_in, n_out, data, KN_USE_LINEAR);
    if (rc == 0 && (n_mat < 1 || n_mat > EXPERTS_MATRICES || n_out * n_mat > INT32_MAX - 16))
        rc = cuda_fail(be, n_mat < 1 ? KN_EINVAL : KN_ETYPE,
                       "%d matrices [%lld, %lld] of %s (expected 1 to %d)", n_mat, (long long)n_out,
                       (long long)n_in, kn_type_info(type)->name, EXPERTS_MATRICES);
    w->n_mat = n_mat;
    if (rc == 0) rc = open_stage(be);
    if (rc == 0) rc = cuda_experts_open(be);
    if (rc) return rc;
    rc = take_host(be, w, places);
    if (rc == 0) rc = take_memory(be, w, KN_USE_LINEAR);
    if (rc == 0) rc = fill_experts(be, w, places, (const uint8_t *)data);
    if (rc) cuda_weight_free(kb, w);
    return rc;
}

void cuda_weight_free(struct kn_backend *kb, struct kn_weight *w)
{
    if (!w) return;
    if (w->host) cuda_free_host(kb, w->host);
    cudaFree(w->places);
    cudaFree(w->packed);
    cudaFree((void *)w->rows);
    *w = {};
    w->type = KN_TYPE_NONE;
}
