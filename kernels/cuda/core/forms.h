/* forms.h - how often each form of a kernel was launched, or recorded.
 *
 * The backend counts where it launches, so a test that knows which form its case is for can tell it from
 * another that gives the same bits: a fall back to a general form is seen (cuda_forms in cuda.h). */
#ifndef DFLASH_CUDA_FORMS_H
#define DFLASH_CUDA_FORMS_H

/* The order within a kind is that of its planner's enum: mm_form, attn_form, chain_form, experts_form. */
#define CUDA_FORM_LIST(F)                                                                                    \
    F(PRODUCT_GENERIC, "product generic")                                                                    \
    F(PRODUCT_BULK, "product bulk")                                                                          \
    F(PRODUCT_FEW, "product few")                                                                            \
    F(PRODUCT_LATE, "product late")                                                                          \
    F(PRODUCT_WIDE, "product wide")                                                                          \
    F(PRODUCT_SUMS, "product sums") /* of slices left in memory, by a kernel of their own */                 \
    F(PRODUCT_LIBRARY, "product library")                                                                    \
    F(PRODUCT_TILES, "product tiles")                                                                        \
    F(ATTN_ANY, "attention any")                                                                             \
    F(ATTN_STEP, "attention step")                                                                           \
    F(ATTN_STREAM, "attention stream")                                                                       \
    F(ATTN_FAR, "attention far")                                                                             \
    F(ATTN_CLUSTERS, "attention clusters")                                                                   \
    F(ATTN_PLACES, "attention places")                                                                       \
    F(ATTN_COLUMNS, "attention columns")                                                                     \
    F(ATTN_ALONE, "attention alone")                                                                         \
    F(ATTN_PREFILL, "attention prefill")                                                                     \
    F(ATTN_GROUP, "attention group")                                                                         \
    F(ATTN_CODES, "attention codes")                                                                         \
    F(ATTN_FAR_CODES, "attention far codes")                                                                 \
    F(ATTN_MERGE, "attention merge")                                                                         \
    F(ATTN_TREE, "attention tree")                                                                           \
    F(ATTN_PATHS, "attention paths")                                                                         \
    F(CHAIN_FEW, "chain few")                                                                                \
    F(CHAIN_PAIRS, "chain pairs")                                                                            \
    F(CHAIN_SHARED, "chain shared")                                                                          \
    F(CHAIN_FAR, "chain far")                                                                                \
    F(CHAIN_GEMMA, "chain gemma")                                                                            \
    F(CHAIN_NETS, "chain nets")                                                                              \
    F(CHAIN_NETS_SHARED, "chain nets shared")                                                                \
    F(CHAIN_ITEMS, "chain items")                                                                            \
    F(CHAIN_ITEMS_FAR, "chain items far")                                                                    \
    F(CHAIN_NETS_ITEMS, "chain nets items")                                                                  \
    F(CHAIN_CODES, "chain codes")                                                                            \
    F(CHAIN_ITEMS_CODES, "chain items codes")                                                                \
    F(CHAIN_LOW, "chain low")                                                                                \
    F(CHAIN_LOW_FAR, "chain low far")                                                                        \
    F(CHAIN_NETS_LOW, "chain nets low")                                                                      \
    F(CHAIN_LOW_CODES, "chain low codes")                                                                    \
    F(CHAIN_KS, "chain all K")                                                                               \
    F(CHAIN_GRIDS, "chain grids")                                                                            \
    F(CHAIN_GRIDS_FAR, "chain grids far")                                                                    \
    F(CHAIN_GRIDS_CODES, "chain grids codes")                                                                \
    F(CHAIN_GRIDS_ITEMS, "chain grids items")                                                                \
    F(CHAIN_GRIDS_ITEMS_FAR, "chain grids items far")                                                        \
    F(CHAIN_GRIDS_ITEMS_CODES, "chain grids items codes")                                                    \
    F(CHAIN_NETS_GRIDS, "chain nets grids")                                                                  \
    F(CHAIN_ALONE, "chain alone") /* collected, and launched one by one after all */                         \
    F(EXPERTS_PLAIN, "experts plain")                                                                        \
    F(EXPERTS_HELD, "experts held")                                                                          \
    F(EXPERTS_SOLO, "experts solo")                                                                          \
    F(EXPERTS_STAGED, "experts staged")                                                                      \
    F(EXPERTS_OWNED, "experts owned")                                                                        \
    F(EXPERTS_WHOLE, "experts whole")                                                                        \
    F(EXPERTS_AROUND, "experts around") /* whole, with a product before it or behind */                      \
    F(DELTA_ROWS, "delta rows")         /* token by token, any heads */                                      \
    F(DELTA_FEW, "delta few")                                                                                \
    F(DELTA_ONE, "delta one")                                                                                \
    F(DELTA_CHUNKS, "delta chunks")                                                                          \
    F(DELTA_BLOCKS, "delta blocks")                                                                          \
    F(DELTA_PATHS, "delta paths")

enum cuda_form {
#define CUDA_FORM_ENUM(id, name) CUDA_##id,
    CUDA_FORM_LIST(CUDA_FORM_ENUM)
#undef CUDA_FORM_ENUM
        CUDA_FORMS
};

#endif
