/* cycle.h - a cycle and the rows it tries. It drafts, offers what it drafted to the host, verifies, accepts
 * and commits without waiting for the host: what changes from one to the next lies in device memory and is
 * advanced by op->accept, so that the same operations with the same arguments, recorded once, are the next
 * cycle as well. The rows tried are a chain or a tree. */
#ifndef DFLASH_OPS_CYCLE_H
#define DFLASH_OPS_CYCLE_H

#include <stdint.h>

struct kn_kv;

/* ---- trees ---- */

#define KN_CYCLE_ROWS 64 /* rows of a cycle at most */
#define KN_TOP 32        /* candidates of a place at most */

/* Tried rows that stand behind each other as a tree, in device memory. Row 0 is the anchor; row r stands
 * behind row parent[r] < r. It sees what is committed, which is all before pos[0], and the rows of its path,
 * from row 0 to itself, no other. A chain is no tree here: it is run without one. */
struct kn_tree {
    int32_t ids[KN_CYCLE_ROWS];                 /* the rows' tokens */
    int32_t parent[KN_CYCLE_ROWS];              /* -1 of row 0 */
    int32_t pos[KN_CYCLE_ROWS];                 /* pos[0] and the length of the path behind row 0 */
    int32_t at[KN_CYCLE_ROWS];                  /* pos[0] + i */
    int32_t n_leaves;                           /* rows that none stands behind, */
    int32_t leaf[KN_CYCLE_ROWS];                /* rising */
    uint8_t path[KN_CYCLE_ROWS][KN_CYCLE_ROWS]; /* [r][i]: the row of r's path at pos[0] + i; behind r: r */
    /* The host writes what is above, op->follow what is below. */
    int32_t stays[KN_CYCLE_ROWS];    /* the rows that stay, a path from row 0 on; behind them 0 */
    int32_t stay_ids[KN_CYCLE_ROWS]; /* their ids */
};

/* From row 0 on: the row that stands behind the present one and whose id its pick equals is next. *kept
 * becomes the number of rows on the way, tree->stays and stay_ids which. */
struct kn_follow {
    struct kn_tree *tree;
    const int32_t *picks; /* [n] */
    int32_t n, *kept;
};

/* Of the rows that stay, in order: keys and values from tail to their positions in kv (kv NULL: none); row i
 * of log becomes the i-th's (log NULL: none), width floats a row. Whoever reads behind them reads anything.
 */
struct kn_settle {
    const struct kn_tree *tree;
    const int32_t *kept;
    int32_t most; /* *kept at most */
    const struct kn_kv *kv, *tail;
    float *log;
    int64_t width;
    const struct kn_settle
        *next; /* NULL, or another layer's of the same tree: the call takes the whole list */
};

/* ---- cycles ---- */

#define KN_STAMPS 4 /* points in time a cycle: the start and end of drafting, and of the verify */

/* What may stand behind an anchor, for the host, in memory that host and device share (op->alloc_shared). */
struct kn_offer {
    int32_t ids[KN_CYCLE_ROWS]; /* the anchor, then the proposals as they were made */
    float logp[KN_CYCLE_ROWS];  /* of the proposals, from 0 */
    int32_t pos;                /* of the anchor */
    int32_t usable;             /* 0: a proposal is KN_PICK_NAN */
    uint32_t number;            /* of the offer, from 1: written last */
};

/* Candidates of an offer's places, for the host, in memory that host and device share. */
struct kn_candidates {
    int32_t ids[(KN_CYCLE_ROWS - 1) * KN_TOP]; /* [n - 1, top] as op->top left them */
    float values[(KN_CYCLE_ROWS - 1) * KN_TOP];
    float scores[(KN_CYCLE_ROWS - 1) * KN_TOP *
                 KN_TOP]; /* [n - 1, top, top] as op->edges left them, where it did */
};

/* Tell the host; where a proposal is none, none is: all of ids but the anchor become KN_PICK_NAN. */
struct kn_offering {
    int32_t *ids;            /* [n] */
    const float *logp;       /* [n - 1] */
    const int32_t *pos;      /* of row 0 */
    int32_t n;               /* the anchor and its proposals, 1 <= n <= KN_CYCLE_ROWS */
    uint64_t *stamp;         /* as op->stamp would leave it: when drafting ended */
    uint32_t *number;        /* of the offer before, += 1 */
    struct kn_offer *offers; /* [n_offers] shared; this one's is number % n_offers */
    int32_t n_offers;
    /* NULL, or candidates too (op->top): [n - 1, top], to candidates [n_offers]. */
    const int32_t *top_ids;
    const float *top_values;
    const float *top_scores; /* NULL, or [n - 1, top, top] (op->edges) */
    int32_t top;
    struct kn_candidates *candidates;
};

/* What a cycle left for the host, in shared memory. */
struct kn_result {
    uint64_t stamp[KN_STAMPS];    /* ns: as op->stamp left them */
    uint64_t accepted;            /* ns: when accept began */
    int32_t pos;                  /* of row 0 */
    int32_t kept;                 /* rows that stay: the anchor and the accepted proposals; 1 or more */
    int32_t usable;               /* 0: a row is KN_PICK_NAN, and no proposal was accepted */
    int32_t ids[KN_CYCLE_ROWS];   /* of the verified rows: the anchor, then proposals; of a tree those that
                                     stay, then anything */
    int32_t picks[KN_CYCLE_ROWS]; /* of the same */
    int32_t rows[KN_CYCLE_ROWS];  /* of a tree: which these are */
    uint32_t number;              /* of the cycle, from 1: written last */
};

/* Keep row r + 1 while proposal ids[r + 1] equals picks[r] and all proposals are ids; then advance everything
 * by the rows kept. All but results in device memory. */
struct kn_accept {
    int32_t *ids;         /* [n] anchor and proposals; ids[0] becomes the next anchor, picks[kept - 1] */
    const int32_t *picks; /* [n] */
    int32_t n;            /* verified rows, 1 <= n <= KN_CYCLE_ROWS */
    int32_t *pos;         /* [KN_CYCLE_ROWS] ascending by one from row 0's; += kept */
    int32_t *history;     /* [..] by position: the picks of kept rows are written behind their rows */
    int32_t *anchor;      /* NULL, or the next anchor goes here too */
    int32_t *first;       /* NULL, or becomes max(0, next row 0's position - window) */
    int32_t window;
    int32_t *kept;             /* becomes the number of rows kept */
    uint32_t *number;          /* of the cycle before, += 1 */
    const uint64_t *stamp;     /* [KN_STAMPS] */
    struct kn_result *results; /* [n_results] shared; this cycle's is number % n_results */
    int32_t n_results;
    int32_t *behind; /* NULL, or becomes (*behind + kept) % every */
    int32_t every;
    /* For benchmarks. NULL, or [..] by row 0's position: so many proposals count as equal to the picks before
     * them, whatever stands in either. */
    const int32_t *equal;
    /* NULL, or the rows were a tree's, op->follow is done and kept says how many stay: ids is then written
     * alone.
     */
    const struct kn_tree *tree;
};

#endif
