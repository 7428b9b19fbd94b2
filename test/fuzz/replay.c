/* replay.c - feed every file of the given folders to a fuzz target, without a fuzzer: `make fuzz-replay`,
 * part of the tests.
 *
 * usage: replay_TARGET NAME FOLDER...     prints "ok   fuzz/NAME (N inputs)"; a find ends the program by its
 * signal */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *current; /* what a crash handler names */

static void on_crash(int sig)
{
    fprintf(stderr, "crashed on %s\n", current);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void feed(const char *path)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    uint8_t *p;
    if (!f || fstat(fileno(f), &st)) {
        perror(path);
        exit(4);
    }
    p = malloc((size_t)st.st_size ? (size_t)st.st_size
                                  : 1); /* exactly as long: a sanitizer sees a byte too far */
    if (!p || fread(p, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
        perror(path);
        exit(4);
    }
    fclose(f);
    current = path;
    LLVMFuzzerTestOneInput(p, (size_t)st.st_size);
    free(p);
}

static int feed_folder(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *f;
    int n = 0;
    if (!d) return 0;
    while ((f = readdir(d))) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (stat(path, &st) || !S_ISREG(st.st_mode)) continue;
        feed(path);
        n++;
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: replay NAME FOLDER...\n");
        return 2;
    }
    signal(SIGSEGV, on_crash);
    signal(SIGILL, on_crash);
    signal(SIGABRT, on_crash);
    for (int i = 2; i < argc; i++) n += feed_folder(argv[i]);
    if (!n) {
        printf("FAIL fuzz/%s: no inputs\n", argv[1]);
        return 1;
    }
    printf("ok   fuzz/%s (%d inputs)\n", argv[1], n);
    return 0;
}
