/* json.c - see json.h. */
#include "json.h"

#include <inttypes.h>
#include <string.h>

#include "io.h"
#include "mem.h"

void json_use_mem(void)
{
    json_set_alloc_funcs(mem_alloc, mem_free);
}

int json_parse(json_t **j, const void *data, uint64_t n, const char *name, struct err *e)
{
    json_error_t why;
    uint64_t failures = mem_failures();
    *j = NULL;
    memset(&why, 0, sizeof why);
    /* jansson reports some failed allocations as bad tokens, and where the buffer of a string cannot grow it loses a
     * character and goes on: through our functions both can be told apart. */
    json_use_mem();
    if (n > SIZE_MAX) return err_set(e, ERR_IO, "%s: out of memory (%" PRIu64 " bytes of JSON)", name, n);
    *j = json_loadb(n ? data : "", (size_t)n, JSON_REJECT_DUPLICATES, &why);
    if (mem_failures() != failures) {
        json_decref(*j);
        *j = NULL;
        return err_set(e, ERR_IO, "%s: out of memory (JSON)", name);
    }
    if (*j) return 0;
    return err_set(e, ERR_FORMAT, "%s: bad JSON in line %d, column %d: %.160s", name, why.line, why.column,
                   why.text);
}

int json_parse_file(json_t **j, const char *path, uint64_t cap, struct err *e)
{
    struct io_map m;
    int r;
    *j = NULL;
    if (io_map_open(&m, path, e)) return -1;
    if (m.size > cap)
        r = err_set(e, ERR_FORMAT, "%s: too long (expected at most %" PRIu64 " bytes, got %" PRIu64 ")", path,
                    cap, m.size);
    else
        r = json_parse(j, m.data, m.size, path, e);
    io_map_close(&m);
    return r;
}
