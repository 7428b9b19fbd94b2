/* make_dialects.c - a drafter's file as every engine's own writer would have it, for the command line tests.
 *
 * usage: make_dialects DRAFTER.gguf DIR     DRAFTER: dialect upstream
 * Writes DIR/NAME.gguf of that drafter, and DIR/small-NAME.gguf of a few KB. */
#include "dialect_files.h"

static int write_all(const char *dir, const char *prefix, const struct df_drafter *d, struct err *e)
{
    char path[4096];
    for (int i = 0; i < N_SPELLINGS; i++) {
        const struct df_change plain = {.windows = spellings[i].pattern && d->window > 0};
        snprintf(path, sizeof path, "%s/%s%s.gguf", dir, prefix, spellings[i].name);
        if (df_write(path, d, &spellings[i], &plain, e)) return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct df_drafter d, small;
    struct err e = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: make_dialects DRAFTER.gguf DIR\n");
        return 2;
    }
    df_make(&small);
    int rc = df_open(&d, argv[1], &e) || write_all(argv[2], "", &d, &e) ||
             write_all(argv[2], "small-", &small, &e);
    if (rc) fprintf(stderr, "make_dialects: %s\n", e.msg);
    df_free(&small);
    df_free(&d);
    return rc ? 1 : 0;
}
