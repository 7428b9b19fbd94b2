/* scratch.h - a directory of its own for a test program, removed at its end. */
#ifndef TEST_SCRATCH_H
#define TEST_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch_dir[64];

static inline int scratch_remove_one(const char *p, const struct stat *st, int type, struct FTW *f)
{
    (void)st;
    (void)type;
    (void)f;
    return remove(p);
}

static inline void scratch_begin(void)
{
    strcpy(scratch_dir, "/tmp/dflash-test.XXXXXX");
    if (!mkdtemp(scratch_dir)) {
        perror(scratch_dir);
        exit(4);
    }
}

static inline void scratch_end(void)
{
    nftw(scratch_dir, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Of a group of tests. */
static inline int scratch_setup(void **state)
{
    (void)state;
    scratch_begin();
    return 0;
}

static inline int scratch_teardown(void **state)
{
    (void)state;
    scratch_end();
    return 0;
}

/* A path in the directory; four of them live at a time. */
static inline const char *scratch(const char *name)
{
    static char p[4][160];
    static int i;
    i = (i + 1) % 4;
    snprintf(p[i], sizeof p[i], "%s/%s", scratch_dir, name);
    return p[i];
}

static inline void scratch_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) {
        perror(path);
        exit(4);
    }
}

/* The whole file, malloc'ed, NUL-terminated; NULL if there is none. */
static inline char *scratch_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    size_t got, have = 0;
    if (!f) return NULL;
    do {
        p = realloc(p, have + 65536 + 1);
        got = fread(p + have, 1, 65536, f);
        have += got;
    } while (got);
    fclose(f);
    p[have] = 0;
    if (n) *n = have;
    return p;
}

/* How many files there are in the directory. */
static int scratch_count;
static inline int scratch_count_one(const char *p, const struct stat *st, int type, struct FTW *f)
{
    (void)p;
    (void)st;
    (void)f;
    scratch_count += type == FTW_F;
    return 0;
}
static inline int scratch_files(void)
{
    scratch_count = 0;
    nftw(scratch_dir, scratch_count_one, 8, FTW_PHYS);
    return scratch_count;
}

#endif
