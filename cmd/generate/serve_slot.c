/* serve_slot.c - see serve.h. A slot is the file that dflash-prefill would write, in memory without a name.
 */
#include "serve.h"

#include <errno.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

void slots_init(struct server *sv)
{
    for (int i = 0; i < REQUEST_SLOTS; i++) sv->slots[i].fd = -1;
}

void slot_free(struct server *sv, int32_t i)
{
    struct slot *x = &sv->slots[i];
    if (x->fd >= 0) close(x->fd);
    sv->slot_bytes -= x->bytes;
    sv->prefix.budget = sv->budget - sv->slot_bytes;
    *x = (struct slot){.fd = -1};
}

void slots_close(struct server *sv)
{
    for (int32_t i = 0; i < REQUEST_SLOTS; i++) slot_free(sv, i);
}

/* fd, a whole state, becomes the slot. Kept beginnings make room for it; slots do not. */
static int put(struct server *sv, int32_t i, int fd, int32_t n_tokens, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st)) return err_errno(e, "slot %d", i);
    const uint64_t bytes = (uint64_t)st.st_size, budget = sv->budget,
                   others = sv->slot_bytes - sv->slots[i].bytes;
    if (bytes > budget || others > budget - bytes)
        return err_set(e, ERR_IO, "slot %d: no room (expected at most %.1f MiB for all slots, got %.1f)", i,
                       (double)budget / 1048576, (double)(others + bytes) / 1048576);
    slot_free(sv, i);
    sv->slots[i] = (struct slot){.fd = fd, .n_tokens = n_tokens, .bytes = bytes, .used = ++sv->clock};
    sv->slot_bytes += bytes;
    sv->prefix.budget = budget - sv->slot_bytes;
    prefix_shrink(&sv->prefix, sv->prefix.budget);
    return 0;
}

static int memory_file(int32_t i, struct err *e)
{
    const int fd = memfd_create("dflash-slot", MFD_CLOEXEC);
    return fd < 0 ? err_errno(e, "slot %d", i) : fd;
}

static int write_state(struct session *s, struct io_out *o, struct err *e)
{
    if (state_save(s, o, e) == 0 && io_out_commit(o, e) == 0) return 0;
    io_out_abort(o);
    return -1;
}

int slot_take(struct server *sv, int32_t i, struct session *s, struct err *e)
{
    struct io_out o;
    const int fd = memory_file(i, e), own = fd < 0 ? -1 : dup(fd);
    if (fd < 0) return -1;
    if (own < 0)
        err_errno(e, "slot %d", i);
    else if (io_out_fd(&o, own, "slot", e) == 0 && write_state(s, &o, e) == 0 &&
             put(sv, i, fd, s->n_past, e) == 0) {
        sv->slots[i].of = s;
        return 0;
    }
    close(fd);
    return -1;
}

void slots_forget(struct server *sv, const struct session *s)
{
    for (int32_t i = 0; i < REQUEST_SLOTS; i++)
        if (sv->slots[i].of == s) sv->slots[i].of = NULL;
}

/* A descriptor of the slot's file with a position of its own. */
int slot_open(struct server *sv, int32_t i, struct state **st, struct state_info *info, struct err *e)
{
    char path[32], name[32];
    *st = NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", sv->slots[i].fd);
    snprintf(name, sizeof name, "slot %d", i);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "%s", name);
    sv->slots[i].used = ++sv->clock;
    return state_open_fd(st, fd, name, info, e);
}

static int copy(int from, struct io_out *o, struct err *e)
{
    char buf[1 << 16];
    off_t at = 0;
    for (;;) {
        const ssize_t n = pread(from, buf, sizeof buf, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_errno(e, "%s: cannot read", o->path);
        if (n == 0) return 0;
        if (io_out_write(o, buf, (size_t)n, e)) return -1;
        at += n;
    }
}

int slot_save(struct server *sv, int32_t i, const char *path, struct err *e)
{
    struct io_out o;
    const char *name = path_out(sv, path, e);
    if (!name || io_out_open(&o, name, true, NULL, 0, e)) return -1;
    if (copy(sv->slots[i].fd, &o, e) == 0 && io_out_commit(&o, e) == 0) return 0;
    io_out_abort(&o);
    return -1;
}

int slot_save_session(struct server *sv, struct session *s, const char *path, struct err *e)
{
    struct io_out o;
    const char *name = path_out(sv, path, e);
    return !name || io_out_open(&o, name, true, NULL, 0, e) ? -1 : write_state(s, &o, e);
}

/* Whole, with its checksums compared, and of these models. */
static int check_copy(struct server *sv, int fd, const char *path, int32_t *n_tokens, struct err *e)
{
    char name[32];
    struct state *st;
    struct state_info info;
    uint64_t sections;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    const int own = open(name, O_RDONLY | O_CLOEXEC);
    if (own < 0) return err_errno(e, "%s", path);
    if (state_open_fd(&st, own, path, &info, e)) return -1;
    *n_tokens = info.n_tokens;
    const struct models *m = &sv->set->m;
    const struct desc *drafters[PLAN_SOURCES];
    int rc = state_check(st, m->target->d, drafters, models_drafters(m, drafters), &sv->o, e);
    if (rc == 0) rc = state_verify(st, &sections, e);
    state_close(st);
    return rc;
}

int slot_load(struct server *sv, int32_t i, const char *path, struct err *e)
{
    struct io_out o;
    int32_t n_tokens = 0;
    const int from = path_open(sv, path, e), fd = from < 0 ? -1 : memory_file(i, e),
              own = fd < 0 ? -1 : dup(fd);
    int rc = -1;
    if (fd >= 0 && own < 0) err_errno(e, "slot %d", i);
    if (own >= 0 && io_out_fd(&o, own, "slot", e) == 0) {
        rc = copy(from, &o, e) == 0 ? io_out_commit(&o, e) : -1;
        io_out_abort(&o);
    }
    if (rc == 0) rc = check_copy(sv, fd, path, &n_tokens, e);
    if (rc == 0) rc = put(sv, i, fd, n_tokens, e);
    if (rc && fd >= 0) close(fd);
    if (from >= 0) close(from);
    return rc;
}
