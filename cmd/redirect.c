/* redirect.c - see redirect.h. */
#include "redirect.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../common/base/mem.h"

static const char *name = "stdout"; /* what stdout is */

const char *redirect_name(void)
{
    return name;
}

int redirect_open(struct redirect *r, const char *path, bool force, const char *const *inputs, int n_inputs,
                  struct err *e)
{
    memset(r, 0, sizeof *r);
    if (!path || !strcmp(path, "-")) return 0;
    if (io_out_open(&r->out, path, force, inputs, n_inputs, e)) return -1;
    if (dup2(r->out.fd, STDOUT_FILENO) < 0) {
        err_errno(e, "%s", path);
        io_out_abort(&r->out);
        return -1;
    }
    r->active = true;
    name = path;
    return 0;
}

int redirect_close(struct redirect *r, const struct cli *c, int status)
{
    return redirect_close_with(r, NULL, c, status);
}

int redirect_close_with(struct redirect *r, struct io_out *more, const struct cli *c, int status)
{
    struct err e = {0};
    const bool failed = status != 0 && status != ERR_NEGATIVE; /* and said why */
    int closed = failed ? 0 : cli_close_stdout_as(c, name);
    if (!closed && !failed && mem_failures()) { /* lines or members of JSON may be lost */
        err_set(&e, ERR_IO, "out of memory (what was printed is not whole)");
        closed = cli_fail(c, &e);
    }
    struct io_out *outs[2];
    int n = 0;
    if (r->active) outs[n++] = &r->out;
    if (more) outs[n++] = more;
    if (closed || failed)
        while (n) io_out_abort(outs[--n]);
    else if (n && io_outs_commit(outs, n, &e))
        return cli_fail(c, &e);
    return closed ? closed : status;
}
