/* io_priv.h - what outputs (io_out.c) and signals (io.c) share: the temporaries that exist. */
#ifndef DFLASH_IO_PRIV_H
#define DFLASH_IO_PRIV_H

#include "io.h"

#define IO_MAX_TMP 1024 /* a model may be written in that many files */
/* The handler unlinks what the string says then, unless it is empty; false: there are IO_MAX_TMP. */
bool io_tmp_enter(char *name);
void io_tmp_leave(char *name);
/* Between these a signal waits. */
void io_naming_begin(void);
void io_naming_end(void);

/* ERR_USAGE where path is a file that is mapped and kept (io_map_keep). */
struct stat;
int io_maps_refuse(const struct stat *out, const char *path, struct err *e);

#endif
