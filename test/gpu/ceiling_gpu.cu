/* ceiling_gpu.cu - the speed of reading device memory once: 4 GB by one kernel of 16-byte streaming loads, best of ten.
 */
#include <cuda_runtime.h>
#include <stdint.h>

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

/* Bytes a second; 0: not measured (no device, no memory). */
extern "C" double ceiling_read(void)
{
    const size_t bytes = (size_t)4 << 30;
    uint4 *p = nullptr;
    uint32_t *sink = nullptr;
    cudaEvent_t from, to;
    cudaDeviceProp prop;
    float best = 1e9f, ms;
    if (cudaGetDeviceProperties(&prop, 0) || cudaMalloc(&p, bytes) || cudaMalloc(&sink, 4) || cudaMemset(p, 0, bytes) ||
        cudaEventCreate(&from) || cudaEventCreate(&to))
        return 0;
    for (int i = 0; i < 12; i++) {
        const unsigned blocks = (unsigned)prop.multiProcessorCount * (i % 2 ? 4 : 2);
        cudaEventRecord(from);
        read_once<<<blocks, 512>>>(p, bytes / 16, sink);
        cudaEventRecord(to);
        if (cudaEventSynchronize(to) || cudaEventElapsedTime(&ms, from, to)) return 0;
        if (i > 1 && ms < best) best = ms;
    }
    cudaFree(p);
    cudaFree(sink);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return (double)bytes / (best * 1e-3);
}
