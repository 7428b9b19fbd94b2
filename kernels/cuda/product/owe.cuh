/* owe.cuh - outputs that a product of few rows left in memory as sums of its slices (mm_owed.cu), and who
 * takes them. */
#ifndef DFLASH_CUDA_OWE_CUH
#define DFLASH_CUDA_OWE_CUH

#include "mm.cuh"

/* Matrix after matrix [slices][n][width]. */
struct mm_owed {
    const float *sums;
    int32_t n, slices, count, add; /* add: to what is in out */
    float *out[MM_WIDTH_MAX];
    int32_t width[MM_WIDTH_MAX];
    /* be->owed: queries of so many columns that attention read last, and would take owed where their rows are
     * from .. to: their product leaves its slices apart next time. */
    struct {
        const float *rows;
        int32_t from, to, width;
    } wanted;
};

/* As mm_take, several outputs of one product, whose widths d divides: `count` of them are `rows`; all become
 * the caller's. */
bool mm_take_rows(const struct cuda_backend *be, int32_t n, int32_t d, const float *const *rows, int count,
                  struct mm_owed *o);
void mm_wants_owed(struct cuda_backend *be, const float *rows, int32_t from, int32_t to, int64_t width);
bool mm_wanted_owed(const struct cuda_backend *be, const float *rows, int32_t n, int64_t width);

#endif
