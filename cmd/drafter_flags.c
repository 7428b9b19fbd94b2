/* drafter_flags.c - see drafter_flags.h. */
#include "drafter_flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_draft_greedy(const struct cli *c, const char *word)
{
    const bool greedy = word && !strcmp(word, "greedy");
    if (word && !greedy && strcmp(word, "coupled"))
        cli_usage_error(c, "--draft-sampling: unknown way (expected coupled or greedy, got %s)", word);
    return greedy;
}

int cli_int_list(const struct cli *c, const char *flag, const char *text, int32_t *v, int cap)
{
    int n = 0;
    const char *s = text;
    for (;;) {
        char *end;
        if (*s < '0' || *s > '9')
            cli_usage_error(c, "%s: not a list of integers (expected N,N,..., got '%s')", flag, text);
        long long x = strtoll(s, &end, 10);
        if (x > INT32_MAX)
            cli_usage_error(c, "%s: out of range (expected at most %d, got %s)", flag, INT32_MAX, text);
        if (n == cap) cli_usage_error(c, "%s: too many (expected at most %d, got %s)", flag, cap, text);
        v[n++] = (int32_t)x;
        if (!*end) return n;
        if (*end != ',')
            cli_usage_error(c, "%s: not a list of integers (expected N,N,..., got '%s')", flag, text);
        s = end + 1;
    }
}

int cli_taps(const struct cli *c, const char *flag, const char *text, int32_t taps[DESC_MAX_TAPS])
{
    const int n = cli_int_list(c, flag, text, taps, DESC_MAX_TAPS);
    for (int i = 0; i < n; i++)
        if (taps[i] >= DESC_MAX_LAYERS)
            cli_usage_error(c, "%s: out of range (expected at most %d, got %s)", flag, DESC_MAX_LAYERS - 1,
                            text);
    const int32_t twice = desc_tap_twice(taps, n, 0);
    if (twice >= 0)
        cli_usage_error(c, "%s: names block %d more than once (expected different ones, got %s)", flag, twice,
                        text);
    return n;
}

double cli_positive(const struct cli *c, const char *flag, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    /* Decimal numbers alone: strtod takes hexadecimal ones and leading blanks too. */
    if (end == text || *end || text[strspn(text, "+-.eE0123456789")] || !((float)v > 0) ||
        v > 1e30) /* 1e-50 is 0 as a float */
        cli_usage_error(c, "%s: not a positive number (got %s)", flag, text);
    return v;
}

double cli_theta(const struct cli *c, const char *flag, const char *text)
{
    const double v = cli_positive(c, flag, text);
    if (v < 1) cli_usage_error(c, "%s: out of range (expected 1 or more, got %s)", flag, text);
    return v;
}

void drafter_flags_read(const struct cli *c, const struct drafter_flags *f, const char *p,
                        struct desc_override *o)
{
    char name[64];
    o->flag = p;
    o->dialect = f->dialect;
    if (f->taps) {
        snprintf(name, sizeof name, "%staps", p);
        o->n_taps = cli_taps(c, name, f->taps, o->taps);
    }
    if (f->taps && f->tap_shift >= 0)
        cli_usage_error(
            c, "%stap-shift says how the file's taps count, and %staps takes their place: one of them", p, p);
    if (f->theta) {
        snprintf(name, sizeof name, "%srope-theta", p);
        o->rope_theta = (float)cli_theta(c, name, f->theta);
    }
    o->has_tap_shift = f->tap_shift >= 0;
    o->tap_shift = f->tap_shift;
    o->has_mask_id = f->mask_id >= 0;
    o->mask_id = f->mask_id;
    o->block_size = f->block_size;
    o->sliding_window = f->window;
    o->sliding_pattern = f->pattern;
}

const char *drafter_flags_given(const struct drafter_flags *f)
{
    return f->dialect          ? "dialect"
           : f->taps           ? "taps"
           : f->tap_shift >= 0 ? "tap-shift"
           : f->mask_id >= 0   ? "mask-id"
           : f->block_size > 0 ? "block-size"
           : f->theta          ? "rope-theta"
           : f->window > 0     ? "sliding-window"
           : f->pattern        ? "sliding-pattern"
                               : NULL;
}
