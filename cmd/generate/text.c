/* text.c - see text.h. */
#include "text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/json.h"
#include "../../common/base/mem.h"

struct best {
    float l;
    int32_t id;
};

void text_check(const struct text *x, const struct cli *c)
{
    for (int i = 0; i < x->stops.n; i++)
        if (!*x->stops.v[i]) cli_usage_error(c, "--stop-text: the text is empty");
}

int text_open(struct text *x, const struct model *target, struct err *e)
{
    struct err none = {0};
    if ((!x->stops.n && !x->logprobs.name) || (x->t && !x->borrowed)) return 0;
    if (!x->borrowed && tok_open(&x->t, target->file, &none)) {
        if (x->stops.n || none.code != ERR_FORMAT) {
            *e = none;
            return x->stops.n && none.code == ERR_FORMAT ? err_prefix(e, "--stop-text") : -1;
        }
        x->t = NULL;
    }
    for (int i = 0; i < x->stops.n; i++)
        if (strlen(x->stops.v[i]) > x->most + 1) x->most = strlen(x->stops.v[i]) - 1;
    x->best = mem_alloc(((size_t)x->logprobs.n + 1) * sizeof *x->best);
    if (x->logprobs.name) x->row = mem_alloc((size_t)target->d->n_vocab * sizeof *x->row);
    if (x->logprobs.name && !x->row) return err_set(e, ERR_IO, "out of memory (a row of logits)");
    x->tail = x->stops.n ? mem_alloc(x->most + 1) : NULL;
    return x->best && (x->tail || !x->stops.n) ? 0 : err_set(e, ERR_IO, "out of memory (stop texts)");
}

void text_close(struct text *x)
{
    if (!x->borrowed) tok_close(x->t);
    mem_free(x->tail);
    mem_free(x->best);
    mem_free(x->row);
    mem_free(x->stops.v);
}

bool text_ends(struct text *x, int32_t id)
{
    size_t n = 0;
    bool written = false;
    const uint8_t *p = id < tok_n_vocab(x->t) ? tok_piece(x->t, id, &n, &written) : NULL;
    if (!written) return false;
    /* Byte by byte: the tail and this token's bytes so far end with a stop, or do not. */
    for (size_t i = 0; i < n && !x->found; i++) {
        for (int k = 0; k < x->stops.n && !x->found; k++) {
            const char *stop = x->stops.v[k];
            const size_t before = strlen(stop) - 1;
            if ((uint8_t)stop[before] == p[i] && x->n_tail >= before &&
                !memcmp(x->tail + x->n_tail - before, stop, before))
                x->found = stop;
        }
        if (x->n_tail == x->most && x->most) memmove(x->tail, x->tail + 1, --x->n_tail);
        if (x->most) x->tail[x->n_tail++] = (char)p[i];
    }
    return x->found != NULL;
}

/* The likeliest n, largest first, of equals the lowest id; returns the log of the sum of exp. */
static double likeliest(const float *l, int32_t n_vocab, struct best *best, int32_t n)
{
    float top = -INFINITY;
    double sum = 0;
    int32_t got = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (l[i] > top) top = l[i];
        if (!n || (got == n && !(l[i] > best[n - 1].l))) continue;
        int32_t at = got < n ? got++ : n - 1;
        for (; at && l[i] > best[at - 1].l; at--) best[at] = best[at - 1];
        best[at] = (struct best){l[i], i};
    }
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)l[i] - (double)top);
    return (double)top + log(sum);
}

/* {"id":5,"piece":" the","logprob":-0.25} */
static json_t *token_json(const struct text *x, int32_t id, double logprob)
{
    json_t *j = json_pack("{s:i}", "id", id);
    size_t n;
    bool written;
    if (x->t && id < tok_n_vocab(x->t)) {
        const uint8_t *p = tok_piece(x->t, id, &n, &written);
        json_object_set_new(j, "piece", json_text((const char *)p, n));
    }
    json_object_set_new(j, "logprob", json_finite(logprob));
    return j;
}

int text_picked(struct text *x, int32_t id, const float *logits, int32_t n_vocab, struct io_out *o,
                struct err *e)
{
    const int32_t n = x->logprobs.n < n_vocab ? x->logprobs.n : n_vocab;
    const double all = likeliest(logits, n_vocab, x->best, n);
    json_t *j = json_pack("{s:i,s:s,s:I}", "schema", 1, "kind", "token", "position",
                          (json_int_t)x->position++),
           *token = token_json(x, id, (double)logits[id] - all), *top = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(top, token_json(x, x->best[i].id, (double)x->best[i].l - all));
    json_object_update(j, token);
    json_decref(token);
    json_object_set_new(j, "top", top);
    char *text = json_line(j, 9);
    json_decref(j);
    int rc = text && !mem_failures() ? 0 : err_set(e, ERR_IO, "out of memory (log-probabilities)");
    if (rc == 0) rc = io_out_write(o, text, strlen(text), e) || io_out_write(o, "\n", 1, e) ? -1 : 0;
    free(text);
    return rc;
}
