/* version.c - which build this is. The Makefile hands in the commit, with a + behind it where files under
 * version control were changed; nothing of a tree that is no clone. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

#ifndef DFLASH_COMMIT
#define DFLASH_COMMIT ""
#endif

const char *cli_commit(bool *changed)
{
    static char commit[64];
    const char *given = DFLASH_COMMIT;
    const size_t n = strcspn(given, "+");
    *changed = given[n] == '+';
    snprintf(commit, sizeof commit, "%.*s", (int)n, given);
    return n ? commit : NULL;
}

const char *cli_version(void)
{
    static char text[128];
    bool changed;
    const char *commit = cli_commit(&changed);
    snprintf(text, sizeof text, DFLASH_VERSION "%s%s%s%s", commit ? " (" : "", commit ? commit : "",
             commit && changed ? ", changed" : "", commit ? ")" : "");
    return text;
}
