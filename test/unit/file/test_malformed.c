/* Every file of data/malformed is refused with the message that EXPECT states, as ERR_FORMAT or (a missing
 * shard) ERR_IO. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../common/file/gguf.h"
#include "../../../common/base/mem.h"
#include "../../../common/file/safetensors.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static int open_it(const char *path, struct err *e)
{
    struct gguf *g = NULL;
    struct st *s = NULL;
    int32_t *ids = NULL;
    size_t n;
    int rc, fd;
    if (ends_with(path, ".gguf")) {
        rc = gguf_open(&g, path, e);
        gguf_close(g);
    } else if (ends_with(path, ".i32")) {
        fd = open(path, O_RDONLY);
        rc = io_read_tokens(fd, path, &ids, &n, e);
        mem_free(ids);
        close(fd);
    } else {
        rc = st_open(&s, path, e);
        st_close(s);
    }
    return rc;
}

static void every_file(void **state)
{
    char line[1024];
    int n = 0, bad = 0;
    FILE *f;
    (void)state;
    assert_int_equal(chdir("data/malformed"), 0); /* the messages begin with the path as it was given */
    f = fopen("EXPECT", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        struct err e = {0};
        char *tab = strchr(line, '\t');
        assert_non_null(tab);
        *tab++ = 0;
        tab[strcspn(tab, "\n")] = 0;
        n++;
        if (open_it(line, &e) == -1 && !strcmp(e.msg, tab) &&
            (e.code == ERR_FORMAT || (e.code == ERR_IO && strstr(tab, "No such file"))))
            continue;
        bad++;
        print_error("%s\n  expected: %s\n  got (%d): %s\n", line, tab, e.code, e.msg);
    }
    fclose(f);
    assert_int_equal(bad, 0);
    assert_true(n >= 70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
