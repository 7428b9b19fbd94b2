/* attention/columns.cu - attn_columns: heads of 512. */
#include "columns.cuh"
#include "rows.cuh"

attn_fn attn_columns_of(int32_t d, uint32_t type, size_t *smem)
{
    if (!kv_halves(type) || d != column_form::D) return NULL;
    *smem = (size_t)column_form::BYTES;
    return kv_bf16(type) ? attn_columns<true> : attn_columns<false>;
}
