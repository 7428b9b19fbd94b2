/* spans.h - a stream in parts: a prompt that goes on behind spans of another stream's rows (span.h), and
 * generations that take turns a cycle at a time (spec.h). Behind turns.h.
 *
 * Both must leave nothing else than the stream that did neither. */
#ifndef TEST_SPANS_H
#define TEST_SPANS_H

#include "turns.h"

#include "../../../common/run/span.h"

/* The prompt from where the stream stands, a chunk a pass; kept, where it is there, gets every whole chunk:
 * a span and a point each. */
static inline void prefill_chunks(struct session *s, int32_t n, uint8_t *kept, uint64_t span, uint64_t point)
{
    struct err e = {0};
    const int32_t chunk = s->o.chunk;
    while (s->n_past < n) {
        const int32_t pos = s->n_past, end = n - pos < chunk ? n : pos + chunk;
        must(session_prefill(s, prompt + pos, end - pos, NULL, NULL, &e), &e);
        if (!kept || end % chunk) continue;
        uint8_t *p = kept + (uint64_t)(end / chunk - 1) * (span + point);
        must(span_take(s, pos, chunk, p, &e) || span_point_take(s, p + span, &e), &e);
    }
}

/* From every whole chunk on: the state of the prompt is the same file, and what is written, with its blocks,
 * the same tokens. The streams' slot has held another one before. */
static inline void any_spans(const struct setting *y, const char *dir)
{
    static struct run plain, ref, r;
    char whole[200], other[200];
    struct err e = {0};
    struct engine *g = setting_engine(y, y->source);
    struct session *s = setting_stream(y, g);
    const int32_t chunk = s->o.chunk;
    const uint64_t span = span_bytes(s, chunk), point = span_point_bytes(s);
    uint8_t *kept = mem_calloc((size_t)(y->n_prompt / chunk), (size_t)(span + point));
    snprintf(whole, sizeof whole, "%s/whole", dir);
    snprintf(other, sizeof other, "%s/spans", dir);
    assert_true(kept && span_possible(s) && y->n_prompt > 2 * chunk);
    assert_int_equal(point > 0, s->delta != NULL);
    setting_alone(y, &plain, &ref);
    prefill_chunks(s, y->n_prompt, kept, span, point);
    save(s, whole);
    session_free(s);
    for (int32_t end = chunk; end < y->n_prompt; end += chunk) {
        s = setting_stream(y, g);
        must(session_prefill(s, prompt + 1, 2 * chunk + 3, NULL, NULL, &e), &e);
        session_free(s);
        s = setting_stream(y, g);
        for (int32_t pos = 0; pos < end; pos += chunk)
            must(span_put(s, pos, chunk, end, kept + (uint64_t)(pos / chunk) * (span + point), &e), &e);
        must(span_point_put(s, kept + (uint64_t)(end / chunk - 1) * (span + point) + span, &e), &e);
        must(span_stand(s, prompt, end, &e), &e);
        prefill_chunks(s, y->n_prompt, NULL, 0, 0);
        save(s, other);
        same_bytes(whole, other);
        setting_go(y, s, NULL, N_NEW, NULL, y->source != NULL, &r);
        same_ids(&plain, &r);
        if (y->source) same_proposals(&ref, &r, g->o.block);
        session_free(s);
    }
    mem_free(kept);
    engine_close(g);
}

/* Generations of several streams, a cycle of one at random at a time. Now and then one is ended early, as a
 * request is that was cancelled, and gone on with. */
static inline void any_runs(const struct setting *y, int n, uint32_t seed)
{
    static struct turn t[STREAMS];
    static struct spec_run u[STREAMS];
    struct spec_options o[STREAMS];
    struct planner p[STREAMS];
    struct err e = {0};
    struct engine *g = setting_engine(y, y->source);
    uint32_t x = seed;
    int left = n, ends = 0;
    for (int i = 0; i < n; i++) {
        t[i] = (struct turn){
            .y = &y[i], .s = setting_stream(&y[i], g), .draw = setting_draw(y, g, draw_next(&x))};
        setting_alone(&y[i], &t[i].plain, &t[i].ref);
        must(session_prefill(t[i].s, prompt, y[i].n_prompt, NULL, NULL, &e), &e);
        p[i] = draw_planner(&t[i].draw);
        u[i] = (struct spec_run){.s = NULL};
    }
    while (left) {
        const uint32_t i = draw_next(&x) % (uint32_t)n;
        if (t[i].r.n == N_NEW && !u[i].s) continue;
        if (!u[i].s) {
            o[i] = (struct spec_options){.n = N_NEW - t[i].r.n,
                                         .sampler = y[i].sampler,
                                         .planner = &p[i],
                                         .tokens = take_tokens,
                                         .proposals = take_proposals,
                                         .ctx = &t[i].r};
            t[i].draw.pos = 0;
            must(spec_begin(&u[i], t[i].s, &o[i], &t[i].r.st, &e), &e);
        } else if (u[i].ended || draw_next(&x) % 8 == 0) {
            ends += !u[i].ended;
            must(spec_end(&u[i], &e), &e);
            left -= t[i].r.n == N_NEW;
        } else {
            must(spec_step(&u[i], &e), &e);
        }
    }
    for (int i = 0; i < n; i++) {
        same_ids(&t[i].plain, &t[i].r);
        session_free(t[i].s);
    }
    assert_true(ends > 0);
    engine_close(g);
}

#endif
