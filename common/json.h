/* json.h - JSON text from files, through jansson.
 *
 * One way in for every JSON file we read (config.json, tokenizer.json, index and header of safetensors):
 * strict RFC 8259, a duplicate key is an error, and a failure names the file, line and column. Own what you
 * get: json_decref. jansson's memory comes from mem.h. */
#ifndef DFLASH_JSON_H
#define DFLASH_JSON_H

#include <jansson.h>
#include <stdint.h>
#include "err.h"

/* jansson's memory from mem.h from now on, so that mem_failures() counts what fails there. Building a JSON value reports no
 * failed allocation that loses a member: whoever prints one asks mem_failures() before the output counts as good. Called by
 * json_parse; a program that only prints calls it first. */
void json_use_mem(void);
/* Parse n bytes; name is for messages. ERR_FORMAT for bad JSON, ERR_IO when out of memory. */
int json_parse(json_t **j, const void *data, uint64_t n, const char *name, struct err *e);
/* The same for a whole file of at most cap bytes. */
int json_parse_file(json_t **j, const char *path, uint64_t cap, struct err *e);

#endif
