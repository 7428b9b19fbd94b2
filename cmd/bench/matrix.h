/* matrix.h - the axes of a matrix, as dflash-bench matrix has read and checked them. Texts are borrowed. */
#ifndef DFLASH_BENCH_MATRIX_H
#define DFLASH_BENCH_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MATRIX_MAX = 64 }; /* of an axis */

struct matrix_named {
    char name[64]; /* "": the one plan of a matrix without plans */
    const char *flags;
    int32_t width; /* of --width N; 0: not given, or auto */
};
struct matrix_drafter {
    char name[64]; /* "": the only one, without a name */
    const char *dir;
    bool mtp;      /* a block that predicts further tokens */
    bool alone;    /* an assistant: made without its target */
    int32_t block; /* rows of a block, 0: not known here */
};

struct matrix {
    const char *target, *random, *out, *baseline; /* HF_DIR; a seed, or NULL; a folder; a file, or NULL */
    const char *type[MATRIX_MAX], *draft_type[MATRIX_MAX];
    struct matrix_drafter drafter[MATRIX_MAX];
    struct matrix_named setting[MATRIX_MAX], plan[MATRIX_MAX];
    const char *const *prompt;
    int n_types, n_draft_types, n_drafters, n_settings, n_plans, n_prompts;
    int64_t n;
    int32_t runs, threads; /* threads 0: all */
};

const char *matrix_base(const char *path); /* without its folders */
size_t matrix_class(const char *path);     /* bytes of matrix_base(path) that are the class */

/* matrix_rules.c: the rules, on stdout */
void matrix_rules(const struct matrix *m);

#endif
