/* lookup_flags.c - see lookup_flags.h. */
#include "lookup_flags.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "../common/base/io.h"
#include "../common/base/mem.h"

static bool on(const struct lookup_flags *f)
{
    return f->mode && strcmp(f->mode, "off") != 0;
}

bool lookup_flags_check(struct lookup_flags *f, const struct cli *c)
{
    f->only = f->mode && !strcmp(f->mode, "only");
    if (on(f) && !f->only && strcmp(f->mode, "on") != 0)
        cli_usage_error(c, "--lookup: expected on, off or only, got '%s'", f->mode);
    if (f->path && !on(f)) cli_usage_error(c, "--lookup-file needs --lookup on or only");
    if (f->path && cli_is_stdin(f->path)) cli_usage_error(c, "--lookup-file must be a file, not stdin");
    return on(f);
}

int lookup_flags_read(struct lookup_flags *f, struct err *e)
{
    if (!f->path || f->ids) return 0;
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "%s", f->path);
    int rc = io_read_tokens(fd, f->path, &f->ids, &f->n, e);
    close(fd);
    if (rc || f->n) return rc;
    return err_set(e, ERR_FORMAT, "%s: no tokens to look up in (expected at least one)", f->path);
}

int lookup_flags_open(struct lookup_flags *f, const struct models *m, struct err *e)
{
    if (!on(f) || f->look) return 0;
    if (f->path && models_check_ids(m, f->path, f->ids, f->n, e)) return -1;
    if (f->path && lookup_text_open(&f->text, f->ids, (int64_t)f->n, LOOKUP_LEAST, e)) return -1;
    f->source = source_lookup(LOOKUP_LEAST, f->text);
    f->look = &f->source.source;
    return 0;
}

void lookup_flags_close(struct lookup_flags *f)
{
    lookup_text_close(f->text);
    mem_free(f->ids);
}
