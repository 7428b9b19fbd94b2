/* needles_make.h - prompts of the needle suite: what is asked lies among as much that looks like it.
 *
 * A prompt is what the suite's model was trained on (data/train_needles.py has the format): padding, groups
 * of 72 tokens, the questions with their answers last. Every answer stands in the prompt, so one prefill's
 * logits say which the model would have given. A function of the settings alone. */
#ifndef DFLASH_NEEDLES_MAKE_H
#define DFLASH_NEEDLES_MAKE_H

#include <stdbool.h>
#include <stdint.h>

enum needle_task {
    NEEDLE_RECORDS, /* one record of a key */
    NEEDLE_KEYS,    /* eight of them in turn, which count as one */
    NEEDLE_LAST,    /* a key written two to four times: the last */
    NEEDLE_VALUES,  /* a key written four times: the four likeliest tokens are their first values */
    NEEDLE_CHAINS,  /* a record that points to another, one to four times */
    NEEDLE_COPIES,  /* 69 tokens */
    NEEDLE_TURNS,   /* records, asked in turns, each behind a state that was saved and restored */
    NEEDLE_TASKS
};
extern const char *const needle_names[NEEDLE_TASKS];

enum {
    NEEDLE_VOCABULARY = 512,
    NEEDLE_GROUP = 72,   /* tokens; questions begin with a group */
    NEEDLE_CASES = 24,   /* of a prompt at most */
    NEEDLE_LEAST = 1024, /* tokens of a prompt */
    NEEDLE_MOST = 32768,
    NEEDLE_DEPTHS = 12, /* where evidence lies: the beginning, just behind the sink, ..., just before the
                           window of the questions, right before them */
};

/* What follows token at must be ids[0..n-1]; several: it must be one of these four, and all four above
 * others. */
struct needle_answer {
    int32_t at, n;
    bool several;
    int32_t one_of[4];
    int32_t of; /* the case that it belongs to: a case is right if all of its answers are */
};
/* n tokens from `from` on are what follows rows `row` and on: what lists must keep for them. */
struct needle_read {
    int32_t row, from, n;
};
struct needle_prompt {
    int32_t *ids;         /* [length], the caller's */
    int32_t length, body; /* body: where the questions begin */
    int32_t n_cases, n_answers;
    int32_t depth[NEEDLE_CASES]; /* of each case's evidence, 0 to NEEDLE_DEPTHS - 1 */
    struct needle_answer answer[2 * NEEDLE_CASES];
    int32_t n_reads;
    struct needle_read read[8 * NEEDLE_CASES];
};

/* Prompt number `number` of a task. ids: room for length tokens, NEEDLE_LEAST to NEEDLE_MOST, a multiple of
 * 128. */
void needle_make(struct needle_prompt *p, enum needle_task task, int32_t length, uint64_t seed,
                 int32_t number, int32_t *ids);

#endif
