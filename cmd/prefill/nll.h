/* nll.h - perplexity: of a prompt as a whole, or of windows, beside a reference's log-probabilities or not.
 */
#ifndef DFLASH_PREFILL_NLL_H
#define DFLASH_PREFILL_NLL_H

#include "../../common/base/io.h"
#include "../../common/run/perplexity.h"
#include "../models.h"

struct nll {
    bool wanted, json;
    const char *base_path, *save_path; /* --kl-base, --kl-save; NULL: none */
    int32_t ctx, chunk;                /* --ctx, 0: not given */
};
/* Is the text cut into windows? */
bool nll_windows(const struct nll *w);
/* Usage errors of these flags, which exit; other: a flag that does not go with windows and is given, or NULL.
 */
void nll_check_flags(const struct nll *w, const struct cli *c, const char *other);
/* All of a run over windows: opens the models (not closed here), reads stdin unless the tokens are the
 * reference's, prints. */
int nll_run(const struct nll *w, struct models *m, const struct cli *c, struct err *e);
/* On stdout, flushed: files beside it appear only if it could be printed. n_windows 0: none, else of ctx
 * tokens. */
int nll_print(const struct nll *w, struct perplexity *p, int32_t n_windows, int32_t ctx,
              const struct models *m, struct err *e);

#endif
