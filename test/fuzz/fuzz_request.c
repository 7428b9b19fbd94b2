/* fuzz_request.c - any bytes as a line of a resident process: a request, whatever it asks for. What it says
 * of itself holds: only bare lines owe the stream anything, the four that never stream owe nothing, what is
 * given is in range, and the same line asks for the same again. */
#include <math.h>
#include <string.h>

#include "../../common/run/request.h"
#include "../../common/run/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(x)                                                                                              \
    if (!(x)) __builtin_trap()

static void check_sampler(const struct request *r)
{
    const struct kn_sampler own = {.temp = 0.5f, .top_p = 1, .repeat_penalty = 1, .seed = 3},
                            k = request_sampler(r, &own);
    MUST(k.temp >= 0 && k.temp <= 1000 && k.top_p > 0 && k.top_p <= 1 && k.top_k >= 0 && k.min_p >= 0 &&
         k.min_p <= 1);
    MUST(k.repeat_penalty > 0 && k.repeat_penalty <= 1000 && k.repeat_last >= 0);
    MUST(fabsf(k.presence) <= 1000 && fabsf(k.frequency) <= 1000);
    MUST(r->given & REQUEST_SEED || k.seed == 3);
    MUST(!r->random_seed || (!r->json && k.seed == 0));
}

static void check(const struct request *r)
{
    static const enum request_kind json_only[] = {REQUEST_SAVE, REQUEST_LOAD, REQUEST_CANCEL, REQUEST_STATS};
    MUST(!r->json || !r->streams);
    MUST((r->kind == REQUEST_BAD) == (r->code != NULL));
    MUST(memchr(r->msg, 0, sizeof r->msg) && !strchr(r->msg, '\n'));
    for (size_t i = 0; i < 4; i++) MUST(r->kind != json_only[i] || r->json);
    if (r->kind == REQUEST_GENERATE || r->kind == REQUEST_SNAPSHOT || r->kind == REQUEST_FREE ||
        r->kind == REQUEST_LIST || r->kind == REQUEST_QUIT)
        MUST(!r->streams);
    if (r->kind == REQUEST_PROMPT || r->kind == REQUEST_RESTORE || r->kind == REQUEST_PARK ||
        r->kind == REQUEST_UNPARK || r->kind == REQUEST_COMPRESS || r->kind == REQUEST_FREE_DRAFTER)
        MUST(r->json || r->streams);
    if (r->kind == REQUEST_PROMPT) MUST(r->path || r->ids || r->append);
    if (r->kind == REQUEST_RESTORE || r->kind == REQUEST_SNAPSHOT || r->kind == REQUEST_FREE)
        MUST(r->slot >= 0 && r->slot < REQUEST_SLOTS);
    if (r->kind == REQUEST_GENERATE) MUST(r->path && r->out);
    if (r->kind == REQUEST_COMPRESS) MUST(r->path && r->scorer && r->keep_x1000 > 0 && r->keep_x1000 <= 1000);
    if (r->kind == REQUEST_PARK || r->kind == REQUEST_UNPARK) MUST(r->what && r->what < 4);
    MUST(r->n >= -1 && r->n <= SESSION_MAX_CTX && r->width >= 0 && r->width <= SESSION_MAX_ROWS);
    MUST(!r->snap_pos || (r->snap_pos > 0 && r->snap_slot >= 0 && r->snap_slot < REQUEST_SLOTS));
    for (size_t i = 0; i < r->n_ids; i++) MUST(r->ids[i] >= 0 || r->kind == REQUEST_BAD);
    check_sampler(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct request r, again;
    MUST(request_read(&r, (const char *)data, size, &e) == 0);
    check(&r);
    MUST(request_read(&again, (const char *)data, size, &e) == 0);
    MUST(r.kind == again.kind && r.streams == again.streams && r.n == again.n && r.given == again.given &&
         !strcmp(r.msg, again.msg) && r.n_ids == again.n_ids && !r.path == !again.path);
    request_free(&r);
    request_free(&again);
    return 0;
}
