/* turns_tiny.h - what test_streams and test_lookups run their turns over: the tiny target, one whose layers
 * slide, and a drafter. Behind engine_fixture.h. */
#ifndef TEST_TURNS_TINY_H
#define TEST_TURNS_TINY_H

#include "turns.h"

static struct model *target, *sliding, *drafter;
static struct source source;

static inline int slide(struct gguf_writer *w, struct err *e)
{
    const uint8_t windows[] = {1, 0, 1};
    if (gguf_put_u32(w, "qwen3.attention.sliding_window", 9, e)) return -1;
    return gguf_put_array(w, "qwen3.attention.sliding_window_pattern", GGUF_BOOL, windows, 3, e);
}

static inline struct setting setting(int i, bool slides, bool drafted, int32_t n_prompt)
{
    return (struct setting){.target = slides ? sliding : target,
                            .source = drafted ? &source : NULL,
                            .o = {.ctx = 900, .chunk = 64, .kv = {KN_F16, KN_F16}},
                            .sampler = i % 2 ? sampled : greedy,
                            .n_prompt = n_prompt};
}

static inline int open_all(void **state)
{
    struct err e = {0};
    if (engine_begin(state)) return -1;
    const char *path = scratch("slide.gguf");
    must(tiny_write(path, &(struct tiny){.seed = 1, .edit = slide}, &e), &e);
    target = load(target_path, be), sliding = load(path, be), drafter = load(drafter_path, be);
    source = source_drafter(drafter);
    return 0;
}

static inline int close_all(void **state)
{
    model_free(drafter);
    model_free(sliding);
    model_free(target);
    return engine_end(state);
}

#endif
