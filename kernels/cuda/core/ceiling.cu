/* ceiling.cu - the speed of reading device memory once: up to 4 GiB by one kernel of 16-byte streaming loads,
 * best of ten; of reading the host's over the link, by that kernel and by a copy. What decoding is measured
 * against; and the library's product of 16-bit numbers. */
#include "ops.cuh"

static __global__ void __launch_bounds__(512) read_once(const uint4 *p, size_t n, uint32_t *sink)
{
    uint32_t x = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step),
                    d = __ldcs(p + i + 3 * step);
        x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step) x ^= __ldcs(p + i).x;
    if (x == 0x12345678) *sink = x; /* memory is zero: never */
}

/* Milliseconds of one pass, or 0. */
static float pass_ms(struct cuda_backend *be, const uint4 *p, size_t bytes, unsigned blocks, cudaEvent_t from,
                     cudaEvent_t to)
{
    float ms = 0.0f;
    cudaEventRecord(from, be->stream);
    read_once<<<blocks, 512, 0, be->stream>>>(p, bytes / 16, be->count);
    cudaEventRecord(to, be->stream);
    return cudaEventSynchronize(to) || cudaEventElapsedTime(&ms, from, to) ? 0.0f : ms;
}

double cuda_read_speed(struct kn_backend *kb)
{
    struct cuda_backend *be = cuda_of(kb);
    size_t bytes = (size_t)4 << 30;
    uint4 *p = nullptr;
    cudaEvent_t from = nullptr, to = nullptr;
    float best = 0.0f;
    while (bytes > 4 * be->l2_bytes && cudaMalloc(&p, bytes)) bytes /= 2; /* what is free beside a model */
    if (p && !cudaMemsetAsync(p, 0, bytes, be->stream) && !cudaEventCreate(&from) && !cudaEventCreate(&to))
        for (int i = 0; i < 12; i++) {
            const float ms = pass_ms(be, p, bytes, (unsigned)be->sm_count * (i % 2 ? 4 : 2), from, to);
            if (i > 1 && ms > 0.0f && (best == 0.0f || ms < best)) best = ms;
        }
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    cudaFree(p);
    (void)cudaGetLastError();
    return best > 0.0f ? (double)bytes / (best * 1e-3) : 0.0;
}

/* Milliseconds of a copy from the host, or 0. */
static float copy_ms(struct cuda_backend *be, void *to, const void *from, size_t bytes, cudaEvent_t a,
                     cudaEvent_t b)
{
    float ms = 0.0f;
    cudaEventRecord(a, be->stream);
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, be->stream);
    cudaEventRecord(b, be->stream);
    return cudaEventSynchronize(b) || cudaEventElapsedTime(&ms, a, b) ? 0.0f : ms;
}

double cuda_link_speed(struct kn_backend *kb)
{
    struct cuda_backend *be = cuda_of(kb);
    const size_t bytes = (size_t)256 << 20; /* more than the second-level cache keeps */
    void *host = cuda_alloc_host(kb, bytes), *here = nullptr;
    cudaEvent_t from = nullptr, to = nullptr;
    float best = 0.0f;
    if (host && !cudaMalloc(&here, bytes) && !cudaEventCreate(&from) && !cudaEventCreate(&to))
        for (int i = 0; i < 8; i++) {
            const float ms = i % 2
                                 ? copy_ms(be, here, host, bytes, from, to)
                                 : pass_ms(be, (const uint4 *)host, bytes, (unsigned)be->sm_count, from, to);
            if (i > 1 && ms > 0.0f && (best == 0.0f || ms < best)) best = ms;
        }
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    cudaFree(here);
    cuda_free_host(kb, host);
    (void)cudaGetLastError();
    return best > 0.0f ? (double)bytes / (best * 1e-3) : 0.0;
}

double cuda_product_speed(struct kn_backend *kb)
{
    double tflops = 0;
    const int rc = many_ceiling(kb, &tflops);
    (void)cudaGetLastError();
    return rc ? 0.0 : tflops * 1e12;
}
