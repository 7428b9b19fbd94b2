/* redirect.h - -o FILE for programs that print: stdout goes into a file that appears whole or not at all. */
#ifndef DFLASH_REDIRECT_H
#define DFLASH_REDIRECT_H

#include <stdbool.h>
#include "cli.h"
#include "../common/base/io.h"

/* Flags for a table; the two variables are the program's. */
#define REDIRECT_FLAGS(path, force)                                                                          \
    {"-o", CLI_STR, &(path), "FILE", "write there instead of stdout", 0, 0},                                 \
    {                                                                                                        \
        "--force", CLI_FLAG, &(force), NULL, "replace an existing FILE", 0, 0                                \
    }

struct redirect {
    struct io_out out;
    bool active;
};
/* path NULL or "-": nothing is changed. inputs: files that the output may not be. */
int redirect_open(struct redirect *r, const char *path, bool force, const char *const *inputs, int n_inputs,
                  struct err *e);
/* What stdout is, for messages: "stdout", or the file. */
const char *redirect_name(void);
/* The last thing a program does with stdout: flush, check, close; keep the file where status says that what
 * was printed is an answer (0 or ERR_NEGATIVE), else remove it. Returns status, or what went wrong here. */
int redirect_close(struct redirect *r, const struct cli *c, int status);
/* The same with one more file (NULL: none), which is written: both appear, or none does. */
int redirect_close_with(struct redirect *r, struct io_out *more, const struct cli *c, int status);

#endif
