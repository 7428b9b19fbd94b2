/* sampling_flags.c - see sampling_flags.h. */
#include "sampling_flags.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/base/json.h"
#include "../common/base/mem.h"

enum { PENALTIES, TEMPERATURE, TOP_K, TOP_P, MIN_P, N_STEPS };
static const char *const step_name[N_STEPS] = {"penalties", "temperature", "top_k", "top_p", "min_p"};

static int step_of(const char *p, size_t n)
{
    for (int i = 0; i < N_STEPS; i++)
        if (strlen(step_name[i]) == n && !memcmp(step_name[i], p, n)) return i;
    return -1;
}

/* --samplers into the order's bits. A step that is left out does nothing, so nothing may ask for it. */
static void check_order(struct sampling_flags *f, const struct cli *c)
{
    static const struct {
        const char *flag;
        int step;
    } asks[] = {{"--repeat-penalty", PENALTIES},
                {"--presence-penalty", PENALTIES},
                {"--frequency-penalty", PENALTIES},
                {"--top-k", TOP_K},
                {"--top-p", TOP_P},
                {"--min-p", MIN_P}};
    int at[N_STEPS] = {-1, -1, -1, -1, -1}, n = 0;
    if (!f->order) return;
    for (const char *p = f->order;; p++) {
        const size_t k = strcspn(p, ",;");
        const int step = step_of(p, k);
        if (step < 0)
            cli_usage_error(c,
                            "--samplers: expected penalties, temperature, top_k, top_p and min_p with commas "
                            "between, got '%s'",
                            f->order);
        if (at[step] >= 0) cli_usage_error(c, "--samplers: %s stands there twice", step_name[step]);
        at[step] = n++;
        if (!*(p += k)) break;
    }
    if (at[PENALTIES] > 0)
        cli_usage_error(c, "--samplers: penalties are applied to all logits (expected first, got place %d)",
                        at[PENALTIES] + 1);
    if (at[TEMPERATURE] < 0) cli_usage_error(c, "--samplers: temperature is missing");
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
        if (at[asks[i].step] < 0 && cli_given(c, asks[i].flag))
            cli_usage_error(c, "%s is given, and --samplers has no %s", asks[i].flag,
                            step_name[asks[i].step]);
    if (at[TOP_P] >= 0 && at[TOP_P] < at[TEMPERATURE]) f->sampler.order |= KN_ORDER_TOP_P_RAW;
    if (at[MIN_P] >= 0 && at[MIN_P] < at[TEMPERATURE]) f->sampler.order |= KN_ORDER_MIN_P_RAW;
    if (at[TOP_P] >= 0 && at[TOP_K] > at[TOP_P]) f->sampler.order |= KN_ORDER_TOP_P_FIRST;
    if (at[TOP_P] >= 0 && at[MIN_P] >= 0 && at[MIN_P] < at[TOP_P]) f->sampler.order |= KN_ORDER_MIN_P_FIRST;
}

static int by_id(const void *a, const void *b)
{
    const struct kn_bias *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static struct kn_bias parse_bias(const struct cli *c, const char *text)
{
    char *end;
    errno = 0;
    const long id = strtol(text, &end, 10);
    const bool good = *text >= '0' && *text <= '9' && !errno && id <= INT32_MAX && *end == '=';
    const char *number = good ? end + 1 : "";
    const bool never = !strcmp(number, "-inf");
    double v = never ? -INFINITY : 0;
    if (!never && number[0] && number[strspn(number, "+-.eE0123456789")] == 0) v = strtod(number, &end);
    if (!never && (!good || !number[0] || number[strspn(number, "+-.eE0123456789")] || *end || end == number))
        cli_usage_error(c, "--logit-bias: expected ID=X, as 15=-1.5 or 15=-inf, got '%s'", text);
    if (!never && !(fabs(v) <= 1e6))
        cli_usage_error(c, "--logit-bias: out of range (expected -1000000 to 1000000, or -inf, got %s)",
                        number);
    return (struct kn_bias){(int32_t)id, (float)v};
}

static void check_biases(struct sampling_flags *f, const struct cli *c)
{
    if (!f->bias.n) return;
    f->host = mem_alloc((size_t)f->bias.n * sizeof *f->host);
    if (!f->host) {
        const struct err e = {.code = ERR_IO, .msg = "out of memory (biases)"};
        exit(cli_fail(c, &e));
    }
    for (int i = 0; i < f->bias.n; i++) f->host[i] = parse_bias(c, f->bias.v[i]);
    qsort(f->host, (size_t)f->bias.n, sizeof *f->host, by_id);
    for (int i = 1; i < f->bias.n; i++)
        if (f->host[i].id == f->host[i - 1].id)
            cli_usage_error(c, "--logit-bias: token %d has two (expected one)", f->host[i].id);
}

void sampling_flags_check(struct sampling_flags *f, const struct cli *c)
{
    static const char *const flags[] = {"--top-k", "--top-p", "--min-p", "--seed", "--draft-sampling"};
    check_order(f, c);
    check_biases(f, c);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !cli_given(c, "--temp"); i++)
        if (cli_given(c, flags[i]))
            cli_warn(c, "%s does nothing without --temp: the temperature is 0, the likeliest token is taken",
                     flags[i]);
    if (cli_given(c, "--repeat-last") && !cli_given(c, "--repeat-penalty") &&
        !cli_given(c, "--presence-penalty") && !cli_given(c, "--frequency-penalty"))
        cli_warn(c, "--repeat-last does nothing without --repeat-penalty, --presence-penalty or "
                    "--frequency-penalty");
}

int sampling_flags_open(struct sampling_flags *f, const struct models *m, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const size_t bytes = (size_t)f->bias.n * sizeof *f->host;
    if (!f->bias.n || f->sampler.bias) return 0;
    if (f->host[f->bias.n - 1].id >= m->target->d->n_vocab)
        return err_set(e, ERR_USAGE, "--logit-bias: an id out of the vocabulary (expected 0 to %d, got %d)",
                       m->target->d->n_vocab - 1, f->host[f->bias.n - 1].id);
    void *device = op->alloc(m->be, bytes);
    if (!device) return model_no_memory(m->be, e, "%d biases", f->bias.n);
    const int rc = op->upload(m->be, device, f->host, bytes);
    f->sampler.bias = device;
    f->sampler.n_bias = f->bias.n;
    return rc ? model_failed(m->target, "biases", rc, e) : 0;
}

void sampling_flags_close(struct sampling_flags *f, const struct models *m)
{
    if (f->sampler.bias) kn_op(m->be)->free(m->be, (void *)(uintptr_t)f->sampler.bias);
    f->sampler.bias = NULL;
    f->sampler.n_bias = 0;
    mem_free(f->host);
    mem_free(f->bias.v);
    f->host = NULL;
    f->bias = (struct cli_list){0};
}

void sampling_flags_json(const struct sampling_flags *f, json_t *j)
{
    const struct kn_sampler *k = &f->sampler;
    json_t *bias = json_array();
    for (int i = 0; i < f->bias.n; i++)
        json_array_append_new(bias, json_pack("[i,o]", f->host[i].id,
                                              isfinite(f->host[i].add) ? json_real((double)f->host[i].add)
                                                                       : json_string("-inf")));
    json_object_set_new(j, "temp", json_finite(k->temp));
    json_object_set_new(j, "top_k", json_integer(k->top_k));
    json_object_set_new(j, "top_p", json_finite(k->top_p));
    json_object_set_new(j, "min_p", json_finite(k->min_p));
    json_object_set_new(j, "repeat_penalty", json_finite(k->repeat_penalty));
    json_object_set_new(j, "presence_penalty", json_finite(k->presence));
    json_object_set_new(j, "frequency_penalty", json_finite(k->frequency));
    json_object_set_new(j, "repeat_last", json_integer(k->repeat_last));
    json_object_set_new(j, "logit_bias", bias);
    json_object_set_new(j, "samplers",
                        json_string(f->order ? f->order : "penalties,temperature,top_k,top_p,min_p"));
    if (k->seed <= INT64_MAX)
        json_object_set_new(j, "seed", json_integer((json_int_t)k->seed));
    else /* more than JSON readers hold as an integer */
        json_object_set_new(j, "seed", json_sprintf("%" PRIu64, k->seed));
}
