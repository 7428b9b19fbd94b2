/* chain/kernel_mixed.cu - the kernel of a chain (kernel.cuh) in its forms that know types with grids beside
 * all others. */
#define CHAIN_LEAN 1
#include "kernel.cuh"

chain_k_fn chain_k_mixed(bool bf16, int form)
{
    static const chain_k_fn all[CHAIN_FORMS - CHAIN_GRIDS_ITEMS][2] = {
        {chain_k_form<false, false, grids_beside<pair_items>>(),
         chain_k_form<true, false, grids_beside<pair_items>>()},
        {chain_k_form<false, false, grids_beside<far_items>>(),
         chain_k_form<true, false, grids_beside<far_items>>()},
        {chain_k_form<false, false, grids_beside<code_items>>(),
         chain_k_form<false, false, grids_beside<code_items>>()},
        {chain_k_form<false, true, grids_beside<net_items>>(),
         chain_k_form<false, true, grids_beside<net_items>>()}};
    return all[form - CHAIN_GRIDS_ITEMS][bf16];
}
