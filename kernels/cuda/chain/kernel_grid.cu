/* chain/kernel_grid.cu - the kernel of a chain (kernel.cuh) in its forms of K types of any kind, and of types
 * with grids beside them. */
#define CHAIN_LEAN 1
#include "kernel.cuh"

chain_k_fn chain_k_grids(bool bf16, int form)
{
    static const chain_k_fn all[CHAIN_GRIDS_ITEMS - CHAIN_KS][2] = {
        {chain_k_form<false, false, all_k<near_keys>>(), chain_k_form<true, false, all_k<near_keys>>()},
        {chain_k_form<false, false, all_grids<near_keys>>(),
         chain_k_form<true, false, all_grids<near_keys>>()},
        {chain_k_form<false, false, all_grids<far_keys>>(), chain_k_form<true, false, all_grids<far_keys>>()},
        {chain_k_form<false, false, all_grids<code_keys>>(),
         chain_k_form<false, false, all_grids<code_keys>>()}};
    return all[form - CHAIN_KS][bf16];
}
