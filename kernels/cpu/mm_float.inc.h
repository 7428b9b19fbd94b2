/* mm_float.inc.h - F32, F16 and BF16 weights: float32 activations, fused multiply-adds in two chains, even k
 * and odd k, added at the end. Two chains a token hide the latency at one token and still fit the registers
 * at eight. Panel: [n_in up to even][LANES] values. */

#define FLOAT_KERNEL(NAME, LOAD, BYTES)                                                                      \
    static ALWAYS_INLINE void NAME(const struct mm_call *c, const int T)                                     \
    {                                                                                                        \
        const uint8_t *p = c->panel, *ahead = c->ahead;                                                      \
        const float *x = (const float *)c->act;                                                              \
        vf even[MM_TILE_MAX], odd[MM_TILE_MAX];                                                              \
        UNROLL for (int t = 0; t < T; t++) even[t] = odd[t] = vf_zero();                                     \
        for (int64_t k = 0; k < c->n_in; k += 2, p += 2 * BYTES * LANES, x += 2 * T) {                       \
            if (c->ahead_step && (k & 7) == 0) ahead = prefetch_lines(ahead, c->ahead_step);                 \
            const vf w0 = LOAD(p), w1 = LOAD(p + BYTES * LANES);                                             \
            UNROLL for (int t = 0; t < T; t++)                                                               \
            {                                                                                                \
                even[t] = vf_fma(w0, vf_bcast(x + t), even[t]);                                              \
                odd[t] = vf_fma(w1, vf_bcast(x + T + t), odd[t]);                                            \
            }                                                                                                \
        }                                                                                                    \
        UNROLL for (int t = 0; t < T; t++) even[t] = vf_add(even[t], odd[t]);                                \
        put_out(c, even, T);                                                                                 \
    }

FLOAT_KERNEL(mul_f32, vf_load, 4)
FLOAT_KERNEL(mul_f16, vf_from_f16, 2)
FLOAT_KERNEL(mul_bf16, vf_from_bf16, 2)
