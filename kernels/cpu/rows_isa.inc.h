/* rows_isa.inc.h - all inner kernels of rows.h for the instruction set VEC_ISA, and their table under the
 * name ROWS. Included once by the file of each instruction set. */
#include "math.h"
#include "rows.h"

#include "kv.inc.h"
#include "rows.inc.h"

#include "attention.inc.h"
#include "pick.inc.h"
#include "draft.inc.h"
#include "route.inc.h"
#include "delta.inc.h"

const struct cpu_rows ROWS = {
    .rms_norm = rows_rms_norm,
    .rms_scale = rows_rms_scale,
    .norm_add = rows_norm_add,
    .gate = rows_gate,
    .scale = rows_scale,
    .softcap = rows_softcap,
    .cell = rows_cell,
    .has_bad = rows_has_bad,
    .rope_table = rows_rope_table,
    .rope = rows_rope,
    .attn_group = rows_attn_group,
    .attn_merge = rows_attn_merge,
    .attn_finish = rows_attn_finish,
    .sparse_scores = rows_sparse_scores,
    .pick = rows_pick,
    .conv = rows_conv,
    .top = rows_top,
    .edge = rows_edge,
    .delta = rows_delta,
    .route = rows_route,
    .weigh = rows_weigh,
    .exp = rows_exp,
    .gated = rows_gated,
};
