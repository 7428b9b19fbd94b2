/* chain/kernel_grid.cu - the kernel of a chain (kernel.cuh) in its forms that know the types with grids. */
#include "kernel.cuh"

chain_k_fn chain_k_grids(bool bf16, int form)
{
    static const chain_k_fn all[CHAIN_FORMS - CHAIN_GRIDS][2] = {
        {chain_k_form<false, false, near_grids>(), chain_k_form<true, false, near_grids>()},
        {chain_k_form<false, false, grids_beside<near_items>>(),
         chain_k_form<true, false, grids_beside<near_items>>()},
        {chain_k_form<false, false, grids_beside<far_items>>(),
         chain_k_form<true, false, grids_beside<far_items>>()},
        {chain_k_form<false, true, grids_beside<net_items>>(),
         chain_k_form<false, true, grids_beside<net_items>>()},
        {chain_k_form<false, false, grids_beside<code_items>>(),
         chain_k_form<false, false, grids_beside<code_items>>()}};
    return all[form - CHAIN_GRIDS][bf16];
}
