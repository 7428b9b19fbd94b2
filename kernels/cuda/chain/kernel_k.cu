/* chain/kernel_k.cu - the kernel of a chain (kernel.cuh) in its forms of K types and of other types, and its
 * launch. */
#include "kernel.cuh"

static chain_k_fn kernel_of(bool bf16, int form)
{
    static const chain_k_fn all[CHAIN_KS][2] = {
        {chain_k_form<false, false, few_keys>(), chain_k_form<true, false, few_keys>()},
        {chain_k_form<false, false, near_keys>(), chain_k_form<true, false, near_keys>()},
        {chain_k_form<false, true, near_keys>(), chain_k_form<true, true, near_keys>()},
        {chain_k_form<false, false, early_beside<far_keys>>(),
         chain_k_form<true, false, early_beside<far_keys>>()},
        {chain_k_form<false, true, wide_keys>(), chain_k_form<true, true, wide_keys>()},
        {chain_k_form<false, false, net_steps>(), chain_k_form<false, false, net_steps>()},
        {chain_k_form<false, true, net_steps>(), chain_k_form<false, true, net_steps>()},
        {chain_k_form<false, false, near_items>(), chain_k_form<true, false, near_items>()},
        {chain_k_form<false, false, far_items>(), chain_k_form<true, false, far_items>()},
        {chain_k_form<false, true, net_items>(), chain_k_form<false, true, net_items>()},
        {chain_k_form<false, false, early_beside<code_keys>>(),
         chain_k_form<false, false, early_beside<code_keys>>()},
        {chain_k_form<false, false, code_items>(), chain_k_form<false, false, code_items>()},
        {chain_k_form<false, false, low_beside<near_items>>(),
         chain_k_form<true, false, low_beside<near_items>>()},
        {chain_k_form<false, false, low_beside<far_items>>(),
         chain_k_form<true, false, low_beside<far_items>>()},
        {chain_k_form<false, true, low_beside<net_items>>(),
         chain_k_form<false, true, low_beside<net_items>>()},
        {chain_k_form<false, false, low_beside<code_items>>(),
         chain_k_form<false, false, low_beside<code_items>>()}};
    if (form >= CHAIN_GRIDS_ITEMS) return chain_k_mixed(bf16, form);
    return form < CHAIN_KS ? all[form][bf16] : chain_k_grids(bf16, form);
}

static constexpr int far_bytes(int n_rep)
{
    return FAR_FIXED + CHAIN_HEADS * n_rep * FAR_ROW * 4;
}
static constexpr int code_bytes_at(int n_rep)
{
    return CHAIN_HEADS * CODE_ROOM(n_rep);
}
template <int D> static constexpr int wide_bytes()
{
    return step<D, 1>::FIXED + step<D, 1>::SLOT + 2 * D;
}
static constexpr int late_bytes(int n_rep)
{
    return (int)leaf_late(n_rep) + chain_few::SLOT + 2 * CHAIN_HEAD;
}
static_assert(CHAIN_ATTEND_BYTES == chain_few::FIXED && CHAIN_KEYS_BYTES == 2 * chain_few::SLOT &&
                  CHAIN_LATE_BYTES(8) == late_bytes(8) && CHAIN_LATE_BYTES(9) == late_bytes(9) &&
                  CHAIN_CODES_BYTES(1) == code_bytes_at(1) && CHAIN_CODES_BYTES(8) == code_bytes_at(8) &&
                  CHAIN_FAR_BYTES(1) == far_bytes(1) && CHAIN_FAR_BYTES(8) == far_bytes(8) &&
                  CHAIN_DELTA_BYTES == sizeof(struct chain_delta_room) &&
                  CHAIN_GATED_BYTES == sizeof(float[CHAIN_WARPS][DELTA_GATED][2 * DELTA]) &&
                  CHAIN_WIDE_BYTES(128) == wide_bytes<128>() && CHAIN_WIDE_BYTES(256) == wide_bytes<256>() &&
                  CHAIN_WIDE_BYTES(512) == wide_bytes<512>(),
              "shared memory as chain_plan.h has it");

cudaError_t chain_k_open(int smem)
{
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < 2 * CHAIN_FORMS && !err; i++)
        err = cudaFuncSetAttribute(kernel_of(i & 1, i / 2).f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   smem);
    return err;
}

cudaError_t chain_k_launch(const struct cuda_backend *be, const struct chain_args *a, bool bf16,
                           enum chain_form form, int blocks, size_t smem)
{
    const chain_k_fn k = kernel_of(bf16, form);
    return cuda_launch(be, k.f, dim3((unsigned)blocks), dim3(32u * (unsigned)k.warps), smem, *a);
}
