/* snapshot.c - see snapshot.h. */
#include "snapshot.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "../base/mem.h"

static const char magic[8] = {'D', 'F', 'S', 'N', 'A', 'P', '0', '1'};

/* The checksum covers tag and size too: a flipped bit there would otherwise show as nonsense further on. */
static uint32_t crc_head(const char *tag, uint64_t size)
{
    uint32_t crc = (uint32_t)crc32_z(0, (const Bytef *)tag, 4);
    return (uint32_t)crc32_z(crc, (const Bytef *)&size, 8);
}

static bool good_tag(const char *tag)
{
    for (int i = 0; i < 4; i++)
        if (!(tag[i] == ' ' || (tag[i] >= 'A' && tag[i] <= 'Z') || (tag[i] >= '0' && tag[i] <= '9')))
            return false;
    return true;
}

/* ---- writing ---- */

int snap_begin(struct snap_writer *w, struct io_out *o, struct err *e)
{
    const uint32_t head[2] = {SNAP_VERSION, 0};
    memset(w, 0, sizeof *w);
    w->o = o;
    return io_out_write(o, magic, sizeof magic, e) || io_out_write(o, head, sizeof head, e) ? -1 : 0;
}

static int open_section(struct snap_writer *w, const char *tag, uint64_t size, struct err *e)
{
    if (w->tag[0])
        return err_set(e, ERR_FORMAT, "%s: section '%s': begun before '%s' ended", w->o->path, tag, w->tag);
    memcpy(w->tag, tag, 4);
    w->tag[4] = 0;
    w->size = size;
    w->done = 0;
    w->crc = crc_head(tag, size);
    return io_out_write(w->o, tag, 4, e) || io_out_write(w->o, &size, 8, e) ? -1 : 0;
}

int snap_section(struct snap_writer *w, const char *tag, uint64_t size, struct err *e)
{
    if (strlen(tag) != 4 || !good_tag(tag) || tag[0] == ' ' || !strcmp(tag, "END "))
        return err_set(e, ERR_FORMAT, "%s: section '%.8s': not a tag (expected 4 of A-Z, 0-9 and blank)",
                       w->o->path, tag);
    return open_section(w, tag, size, e);
}

int snap_write(struct snap_writer *w, const void *data, uint64_t n, struct err *e)
{
    if (!w->tag[0])
        return err_set(e, ERR_FORMAT, "%s: %" PRIu64 " bytes outside of a section", w->o->path, n);
    if (n > w->size - w->done)
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': too much data (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                       w->o->path, w->tag, w->size, w->done + n);
    if (!n) return 0;
    w->crc = (uint32_t)crc32_z(w->crc, data, (size_t)n);
    w->done += n;
    return io_out_write(w->o, data, (size_t)n, e);
}

int snap_section_end(struct snap_writer *w, struct err *e)
{
    if (!w->tag[0]) return err_set(e, ERR_FORMAT, "%s: no section is open", w->o->path);
    if (w->done != w->size)
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': too little data (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                       w->o->path, w->tag, w->size, w->done);
    w->tag[0] = 0;
    w->n++;
    return io_out_write(w->o, &w->crc, 4, e);
}

int snap_put(struct snap_writer *w, const char *tag, const void *data, uint64_t n, struct err *e)
{
    return snap_section(w, tag, n, e) || snap_write(w, data, n, e) || snap_section_end(w, e) ? -1 : 0;
}

int snap_end(struct snap_writer *w, struct err *e)
{
    const uint64_t n = w->n;
    return open_section(w, "END ", 8, e) || snap_write(w, &n, 8, e) || snap_section_end(w, e) ? -1 : 0;
}

/* ---- reading ---- */

/* Exactly n bytes, or an error naming what they belong to. */
static int fill(struct snap_reader *r, void *buf, uint64_t n, const char *what, struct err *e)
{
    uint8_t *p = buf;
    uint64_t have = 0;
    while (have < n) {
        size_t got, want = n - have < (1u << 30) ? (size_t)(n - have) : 1u << 30;
        if (io_read_some(r->fd, r->name, p + have, want, &got, e)) return -1;
        if (!got) {
            err_set(e, ERR_FORMAT,
                    "%s: %s%s%s: the snapshot ends early (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                    r->name, r->tag[0] ? "section '" : what, r->tag, r->tag[0] ? "'" : "", n, have);
            return -1;
        }
        have += got;
    }
    if (r->left != UINT64_MAX) r->left -= n < r->left ? n : r->left;
    return 0;
}

int snap_open(struct snap_reader *r, int fd, const char *name, struct err *e)
{
    struct {
        char magic[8];
        uint32_t version, zero;
    } head;
    struct stat st;
    off_t at;
    memset(r, 0, sizeof *r);
    r->fd = fd;
    r->name = name;
    r->left = UINT64_MAX;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && (at = lseek(fd, 0, SEEK_CUR)) >= 0)
        r->left = st.st_size > at ? (uint64_t)(st.st_size - at) : 0;
    const uint64_t size = r->left;
    memset(&head, 0, sizeof head);
    if (fill(r, &head, sizeof head, "header", e))
        return e->code == ERR_FORMAT ? io_hint_file(&head, size < sizeof head ? size : sizeof head, size, e)
                                     : -1;
    if (memcmp(head.magic, magic, sizeof magic)) {
        err_set(e, ERR_FORMAT, "%s: header: not a snapshot (expected the magic DFSNAP01)", name);
        return io_hint_file(&head, sizeof head, size == UINT64_MAX ? 0 : size, e);
    }
    if (head.version != SNAP_VERSION)
        return err_set(e, ERR_FORMAT, "%s: header: unknown version (expected %d, got %" PRIu32 ")", name,
                       SNAP_VERSION, head.version);
    if (head.zero)
        return err_set(e, ERR_FORMAT, "%s: header: unknown flags (expected 0, got 0x%" PRIx32 ")", name,
                       head.zero);
    return 0;
}

static int read_end(struct snap_reader *r, struct err *e)
{
    uint64_t n = 0;
    uint8_t more;
    size_t got;
    if (r->size != 8)
        return err_set(e, ERR_FORMAT, "%s: section 'END ': bad size (expected 8, got %" PRIu64 ")", r->name,
                       r->size);
    if (snap_read(r, &n, 8, e) || snap_section_check(r, e)) return -1;
    if (n != r->n - 1)
        return err_set(e, ERR_FORMAT,
                       "%s: section 'END ': sections are missing (expected %" PRIu64 ", got %" PRIu64 ")",
                       r->name, n, r->n - 1);
    if (io_read_some(r->fd, r->name, &more, 1, &got, e)) return -1;
    if (got) return err_set(e, ERR_FORMAT, "%s: bytes after the end of the snapshot", r->name);
    return 0;
}

int snap_next(struct snap_reader *r, struct err *e)
{
    char tag[4];
    if (r->tag[0])
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': left before its end (%" PRIu64 " of %" PRIu64 " bytes)", r->name,
                       r->tag, r->done, r->size);
    if (fill(r, tag, 4, "next section", e) || fill(r, &r->size, 8, "next section", e)) return -1;
    if (!good_tag(tag) || tag[0] == ' ')
        return err_set(e, ERR_FORMAT,
                       "%s: section %" PRIu64
                       ": bad tag (expected 4 of A-Z, 0-9 and blank, got %02x %02x %02x %02x)",
                       r->name, r->n, (uint8_t)tag[0], (uint8_t)tag[1], (uint8_t)tag[2], (uint8_t)tag[3]);
    memcpy(r->tag, tag, 4);
    r->tag[4] = 0;
    r->done = 0;
    r->crc = crc_head(tag, r->size);
    if (r->left != UINT64_MAX && (r->left < 4 || r->size > r->left - 4))
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': the snapshot ends early (expected %" PRIu64
                       " bytes and a checksum, got %" PRIu64 ")",
                       r->name, r->tag, r->size, r->left);
    r->n++;
    if (strcmp(r->tag, "END ")) return 1;
    return read_end(r, e);
}

int snap_read(struct snap_reader *r, void *buf, uint64_t n, struct err *e)
{
    if (!r->tag[0]) return err_set(e, ERR_FORMAT, "%s: no section is open", r->name);
    if (n > r->size - r->done)
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': too short (expected %" PRIu64 " more bytes, got %" PRIu64 ")",
                       r->name, r->tag, n, r->size - r->done);
    if (!n) return 0;
    if (fill(r, buf, n, "", e)) return -1;
    r->crc = (uint32_t)crc32_z(r->crc, buf, (size_t)n);
    r->done += n;
    return 0;
}

int snap_section_check(struct snap_reader *r, struct err *e)
{
    uint32_t crc = 0;
    if (!r->tag[0]) return err_set(e, ERR_FORMAT, "%s: no section is open", r->name);
    if (r->done != r->size)
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': too long (expected %" PRIu64 " bytes, got %" PRIu64 ")", r->name,
                       r->tag, r->done, r->size);
    if (fill(r, &crc, 4, "", e)) return -1;
    if (crc != r->crc)
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': damaged: wrong checksum (expected %08" PRIx32 ", got %08" PRIx32
                       ")",
                       r->name, r->tag, crc, r->crc);
    r->tag[0] = 0;
    return 0;
}

int snap_read_section(struct snap_reader *r, uint64_t cap, uint8_t **data, struct err *e)
{
    uint8_t *p = NULL, *q;
    uint64_t have = 0, room = 64 << 10;
    *data = NULL;
    if (r->size > cap)
        return err_set(e, ERR_FORMAT,
                       "%s: section '%s': too long (expected at most %" PRIu64 " bytes, got %" PRIu64 ")",
                       r->name, r->tag, cap, r->size);
    do {
        room = r->left != UINT64_MAX || room > r->size ? r->size
                                                       : room; /* a file's length was checked already */
        q = room > SIZE_MAX ? NULL : mem_realloc(p, (size_t)room);
        if (!q) {
            err_set(e, ERR_IO, "%s: section '%s': out of memory (%" PRIu64 " bytes)", r->name, r->tag, room);
            goto fail;
        }
        p = q;
        if (snap_read(r, p + have, room - have, e)) goto fail;
        have = room;
        room = room > UINT64_MAX / 2 ? UINT64_MAX : room * 2;
    } while (have < r->size);
    if (snap_section_check(r, e)) goto fail;
    *data = p;
    return 0;
fail:
    mem_free(p);
    return -1;
}

int snap_skip(struct snap_reader *r, struct err *e)
{
    uint8_t buf[16 << 10];
    while (r->done < r->size) {
        uint64_t n = r->size - r->done < sizeof buf ? r->size - r->done : sizeof buf;
        if (snap_read(r, buf, n, e)) return -1;
    }
    return snap_section_check(r, e);
}
