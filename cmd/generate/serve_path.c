/* serve_path.c - see serve.h. With a root every path of a request is resolved below it by the kernel
 * (openat2), whatever links and dots it has; without one, and without a socket, paths are the parent's, who
 * could open them itself. */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* path relative to the root: as it is, or an absolute one's rest behind the root's own name. NULL: outside.
 */
static const char *below(struct server *sv, const char *path)
{
    char name[32], root[PATH_MAX];
    if (*path != '/') return path;
    snprintf(name, sizeof name, "/proc/self/fd/%d", sv->root);
    const ssize_t n = readlink(name, root, sizeof root - 1);
    if (n <= 0) return NULL;
    root[n] = 0;
    const char *const given[] = {root, sv->set->serve.root};
    for (int i = 0; i < 2; i++) {
        const size_t k = strlen(given[i]);
        if (k && !strncmp(path, given[i], k) && (path[k] == '/' || given[i][k - 1] == '/')) {
            path += k;
            while (*path == '/') path++;
            return *path ? path : NULL;
        }
    }
    return NULL;
}

static int outside(const char *path, struct err *e)
{
    return err_set(e, ERR_USAGE, "%s: is not below the root of requests", path);
}

static int beneath(struct server *sv, const char *path, int flags, struct err *e)
{
    const struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    const char *rest = below(sv, path);
    if (!rest) return outside(path, e);
    const int fd = (int)syscall(SYS_openat2, sv->root, rest, &how, sizeof how);
    if (fd < 0 && errno == EXDEV) return outside(path, e);
    return fd < 0 ? err_errno(e, "%s", path) : fd;
}

static int no_root(const struct server *sv, struct err *e)
{
    if (sv->root >= 0 || sv->listen < 0) return 0;
    return err_set(e, ERR_USAGE, "paths are not taken here (expected --root DIR beside --listen)");
}

int path_open(struct server *sv, const char *path, struct err *e)
{
    struct stat st;
    if (no_root(sv, e)) return -1;
    /* A pipe without a writer would keep everybody waiting. */
    const int fd = sv->root >= 0 ? beneath(sv, path, O_RDONLY | O_NONBLOCK, e)
                                 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sv->root >= 0 ? -1 : err_errno(e, "%s", path);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
    close(fd);
    return err_set(e, ERR_USAGE, "%s: is no file", path);
}

const char *path_out(struct server *sv, const char *path, struct err *e)
{
    static char name[PATH_MAX];
    static int folder = -1;
    struct stat st;
    char dir[PATH_MAX];
    if (no_root(sv, e)) return NULL;
    if (sv->root < 0) return path;
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    if (!*last || !strcmp(last, ".") || !strcmp(last, "..") || strlen(path) >= sizeof dir) {
        outside(path, e);
        return NULL;
    }
    if (slash == path) { /* in the root of the file system */
        outside(path, e);
        return NULL;
    }
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (folder >= 0) close(folder);
    /* The root itself has no rest behind its name. */
    const char *rest = *dir == '/' ? below(sv, dir) : dir;
    if (!rest && below(sv, path)) rest = ".";
    folder = rest ? beneath(sv, rest, O_PATH | O_DIRECTORY, e) : outside(path, e);
    if (folder < 0) return NULL;
    snprintf(name, sizeof name, "/proc/self/fd/%d/%s", folder, last);
    if (lstat(name, &st) == 0 && !S_ISREG(st.st_mode)) {
        err_set(e, ERR_USAGE, "%s: is no file", path);
        return NULL;
    }
    return name;
}
