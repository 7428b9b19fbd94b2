/* lookup_flags.h - the flags of look-ups, one set for every program that generates: --lookup, --lookup-file.
 *
 * lookup_flags_check behind cli_parse, lookup_flags_read before models_open, lookup_flags_open when the
 * target's vocabulary is known; then .look goes into the session's options. */
#ifndef DFLASH_LOOKUP_FLAGS_H
#define DFLASH_LOOKUP_FLAGS_H

#include "../common/run/lookup.h"
#include "../common/run/source.h"
#include "cli.h"
#include "models.h"

struct lookup_flags {
    const char *mode, *path; /* as given, or NULL */
    bool only;               /* the drafter proposes nothing */
    struct source *look;     /* NULL: off */
    int32_t *ids;            /* of path */
    size_t n;
    struct lookup_text *text;
    struct source_lookup source;
};

#define LOOKUP_FLAGS(f)                                                                                      \
    {"--lookup",                                                                                             \
     CLI_STR,                                                                                                \
     &(f).mode,                                                                                              \
     "on|off|only",                                                                                          \
     "propose what followed when the last tokens stood there before (default off)",                          \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "--lookup-file", CLI_STR, &(f).path, "TOKENS", "look in these tokens too", 0, 0                      \
    }

/* Is --lookup on or only? Usage errors exit. */
bool lookup_flags_check(struct lookup_flags *f, const struct cli *c);
/* --lookup-file. ERR_IO; ERR_FORMAT: no token stream, or an empty one. */
int lookup_flags_read(struct lookup_flags *f, struct err *e);
/* look is set, unless look-ups are off. ERR_FORMAT: an id out of the vocabulary; ERR_IO: memory. */
int lookup_flags_open(struct lookup_flags *f, const struct models *m, struct err *e);
void lookup_flags_close(struct lookup_flags *f);

#endif
