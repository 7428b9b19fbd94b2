/* many_tile_launch.cuh - a launch of the kernel of many_tile.cuh: its shapes for the types of one file. */
#ifndef DFLASH_CUDA_MANY_TILE_LAUNCH_CUH
#define DFLASH_CUDA_MANY_TILE_LAUNCH_CUH

#include "many_tile.cuh"

template <class S, uint32_t... TYPES>
static cudaError_t tile_launch(const struct cuda_backend *be, const struct tile_args *given)
{
    const auto kernel = tile::sums<S, TYPES...>;
    struct tile_args a = *given;
    const int height = a.gated ? 32 * S::GROUPS : 64 * S::GROUPS;
    a.tiles = 0;
    for (int j = 0; j < a.n_w; j++) {
        a.first[j] = a.tiles;
        if (!a.gated || j == 0) a.tiles += (a.w[j].n_out + height - 1) / height;
    }
    if (a.gated) a.n_w = 1;
    a.parts = (a.n + S::N - 1) / S::N;
    static bool ready; /* of this kernel */
    if (!ready) {
        const cudaError_t err =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
        if (err) return err;
        ready = true;
    }
    const int items = a.tiles * a.parts, most = be->sm_count * S::BLOCKS,
              blocks = items < most ? items : most;
    return cuda_launch(be, kernel, dim3((unsigned)blocks), dim3(S::THREADS), S::BYTES, a);
}

/* UNIT: bytes of a panel and stage, at most. */
template <int UNIT, uint32_t... TYPES>
static cudaError_t tile_launch_kind(const struct cuda_backend *be, enum tile_kind kind,
                                    const struct tile_args *a)
{
    using tile::shape;
    /*  N rows, groups, blocks; stages: rows, weights */
    switch (kind) {
    case TILE_256: return tile_launch<shape<256, 2, 1, 4, 2, UNIT>, TYPES...>(be, a);
    case TILE_192: return tile_launch<shape<192, 2, 1, 4, 3, UNIT>, TYPES...>(be, a);
    case TILE_128: return tile_launch<shape<128, 2, 1, 5, 3, UNIT>, TYPES...>(be, a);
    case TILE_96_TWICE: return tile_launch<shape<96, 1, 2, 4, 3, UNIT>, TYPES...>(be, a);
    case TILE_128_THREE: return tile_launch<shape<128, 3, 1, 4, UNIT <= 3360 ? 3 : 2, UNIT>, TYPES...>(be, a);
    case TILE_96_THREE: return tile_launch<shape<96, 3, 1, 5, UNIT <= 3360 ? 3 : 2, UNIT>, TYPES...>(be, a);
    default: return tile_launch<shape<64, 2, 1, 8, 3, UNIT>, TYPES...>(be, a);
    }
}

#endif
