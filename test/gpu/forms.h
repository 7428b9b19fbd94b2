/* forms.h - which forms of kernels ran (kernels/cuda/core/forms.h), for the tests on the device: a case that
 * gives the right bits by a general form in place of its own has fallen back without a word. */
#ifndef DFLASH_TEST_GPU_FORMS_H
#define DFLASH_TEST_GPU_FORMS_H

#include "../../kernels/cuda/core/cuda.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Counts at a moment. */
struct forms {
    uint64_t n[CUDA_FORMS];
};
static inline struct forms forms_now(const struct kn_backend *be)
{
    struct forms f;
    memcpy(f.n, cuda_forms(be), sizeof f.n);
    return f;
}
/* Launches of the form since then. */
static inline long forms_since(const struct kn_backend *be, const struct forms *then, enum cuda_form form)
{
    return (long)(cuda_forms(be)[form] - then->n[form]);
}
/* Launches of forms first .. last since then. */
static inline long forms_range(const struct kn_backend *be, const struct forms *then, enum cuda_form first,
                               enum cuda_form last)
{
    long sum = 0;
    for (int f = (int)first; f <= (int)last; f++) sum += forms_since(be, then, (enum cuda_form)f);
    return sum;
}

/* Have forms first .. last run, those of `wanted` at least once and the others never? text: the counts, and
 * what is wrong. */
static inline bool forms_are(const struct kn_backend *be, enum cuda_form first, enum cuda_form last,
                             const enum cuda_form *wanted, int n_wanted, char *text, size_t size)
{
    bool ok = true;
    size_t at = 0;
    text[0] = 0;
    for (int f = (int)first; f <= (int)last && at < size; f++) {
        const unsigned long long ran = cuda_forms(be)[f];
        bool want = false;
        for (int i = 0; i < n_wanted; i++) want |= (int)wanted[i] == f;
        if (!ran && !want) continue;
        at += (size_t)snprintf(text + at, size - at, "%s%s %llu%s", at ? ", " : "",
                               cuda_form_name((enum cuda_form)f), ran,
                               want == (ran > 0) ? ""
                               : want            ? " (none ran)"
                                                 : " (not to run here)");
        ok &= want == (ran > 0);
    }
    return ok;
}

#endif
