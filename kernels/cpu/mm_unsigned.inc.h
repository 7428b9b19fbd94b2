/* mm_unsigned.inc.h - sets whose vi_dot4 multiplies unsigned codes by signed activations: how signed codes
 * are multiplied. Included behind vi_dot4. */
/* Codes are signed, stored with 128 added: take 128 * sum of q off at the start. */
INLINE vi vi_dot_s8_start(const int32_t *nsum)
{
    return vi_shl(vi_bcast(nsum), 7);
}
INLINE vi vi_dot_s8(vi acc, vi codes, const uint8_t *a)
{
    return vi_dot4(acc, codes, a);
}
/* Codes have 64 added: take 64 * sum of 16 q off at the start, of -32 times it. */
INLINE vi vi_grid_start(const int32_t *n16)
{
    return vi_shl(vi_bcast(n16), 1);
}
