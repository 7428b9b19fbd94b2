/* generate.h - inside dflash-generate: what its files share. */
#ifndef DFLASH_GENERATE_H
#define DFLASH_GENERATE_H

#include "../cli.h"
#include "../lookup_flags.h"
#include "../models.h"
#include "../plan_flags.h"
#include "../sampling_flags.h"
#include "../../common/run/session.h"
#include "../../common/run/spec.h"
#include "../../common/run/state.h"
#include "text.h"

/* --serve and its flags (serve.h). */
struct serve_flags {
    bool on;
    const char *listen, *root; /* NULL: not given */
    int32_t stream_fd;         /* -1: not given */
    int32_t streams;           /* 0: not given */
    int64_t slot_bytes;
    float time_limit;
};

/* What a run was asked for, as the flags filled it. */
struct settings {
    struct models m;
    struct lookup_flags lookup;
    const char *out_path, *state_path, *save_path, *stop_list, *stats_path, *trace_path, *draft_logits_path;
    int64_t n;
    struct plan_flags plan;
    int32_t ctx, chunk, block, draft_window;
    const char *draft_sampling; /* NULL: not given */
    bool append, ignore_eos, force;
    struct sampling_flags sampling;
    struct text text;
    struct serve_flags serve;
};

/* The ids of --stop; *ids is mem_alloc'ed, with room for the target's own behind them. */
int stops_read(const struct settings *set, int32_t **ids, int32_t *n, struct err *e);

/* What came of it. */
struct result {
    int64_t prompt_tokens; /* positions before the first generated token, those of a state included */
    int64_t prefilled;     /* of them, run by this program */
    double prefill_s, start_s;
    struct spec_stats st;
};

/* What stands before the first generated token, as soon as it was run. */
void report_prefill(const struct cli *c, const struct result *r);
void report_print(const struct cli *c, const struct settings *set, const struct session *s,
                  const struct result *r);
/* One JSON object to path, whole or not at all. */
int report_write(const struct settings *set, struct session *s, const struct result *r, struct io_out *o,
                 struct err *e);

#endif
