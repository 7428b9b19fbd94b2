/* stream.c - see stream.h. */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    const uint8_t *data;
    size_t n, at, step;
    unsigned reads;
    bool regular, interrupt, closed;
} s;

ssize_t __real_read(int fd, void *buf, size_t n);
int __real_fstat(int fd, struct stat *st);
off_t __real_lseek(int fd, off_t offset, int whence);
int __real_open(const char *path, int flags, mode_t mode);
int __real_close(int fd);
ssize_t __wrap_read(int fd, void *buf, size_t n);
int __wrap_fstat(int fd, struct stat *st);
off_t __wrap_lseek(int fd, off_t offset, int whence);
int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);

void stream_set(const uint8_t *data, size_t n, bool regular, size_t step, bool interrupt)
{
    memset(&s, 0, sizeof s);
    s.data = data;
    s.n = n;
    s.regular = regular;
    s.step = step;
    s.interrupt = interrupt;
}

bool stream_closed(void)
{
    return s.closed;
}

ssize_t __wrap_read(int fd, void *buf, size_t n)
{
    if (fd != STREAM_FD) return __real_read(fd, buf, n);
    if (s.interrupt && s.reads++ % 3 == 2) {
        errno = EINTR;
        return -1;
    }
    if (n > s.n - s.at) n = s.n - s.at;
    if (s.step && n > s.step) n = s.step;
    if (n) memcpy(buf, s.data + s.at, n);
    s.at += n;
    return (ssize_t)n;
}

int __wrap_fstat(int fd, struct stat *st)
{
    if (fd != STREAM_FD) return __real_fstat(fd, st);
    memset(st, 0, sizeof *st);
    st->st_mode = s.regular ? S_IFREG : S_IFIFO;
    st->st_size = s.regular ? (off_t)s.n : 0;
    return 0;
}

off_t __wrap_lseek(int fd, off_t offset, int whence)
{
    if (fd != STREAM_FD) return __real_lseek(fd, offset, whence);
    if (!s.regular || whence != SEEK_CUR || offset) { /* nothing else is asked for */
        errno = ESPIPE;
        return -1;
    }
    return (off_t)s.at;
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode = 0;
    if (!strcmp(path, STREAM_PATH)) return STREAM_FD;
    if (flags & O_CREAT) {
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    return __real_open(path, flags, mode);
}

int __wrap_close(int fd)
{
    if (fd != STREAM_FD) return __real_close(fd);
    s.closed = true;
    return 0;
}
