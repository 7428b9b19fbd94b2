/* json.h - JSON text from files, and lines of it for output, through jansson.
 *
 * One way in for every JSON file we read (config.json, tokenizer.json, index and header of safetensors):
 * strict RFC 8259, a duplicate key is an error, and a failure names the file, line and column. Own what you
 * get: json_decref. jansson's memory comes from mem.h. */
#ifndef DFLASH_JSON_H
#define DFLASH_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "err.h"

/* jansson's memory from mem.h from now on, so that mem_failures() counts what fails there. Building a JSON
 * value reports no failed allocation that loses a member: whoever prints one asks mem_failures() before the
 * output counts as good. Called by json_parse; a program that only prints calls it first. */
void json_use_mem(void);
/* Parse n bytes; name is for messages. ERR_FORMAT for bad JSON, ERR_IO when out of memory. */
int json_parse(json_t **j, const void *data, uint64_t n, const char *name, struct err *e);
/* The same for a whole file of at most cap bytes. */
int json_parse_file(json_t **j, const char *path, uint64_t cap, struct err *e);

/* s [n] as a JSON value: a string, or {"hex": [...]}, a byte each, where it is not UTF-8. */
json_t *json_text(const char *s, size_t n);
/* The same for a C string; null where there is none. */
json_t *json_text_or_null(const char *s);
/* A real; null where x is none that JSON has. */
json_t *json_finite(double x);
/* j in one line, reals with digits digits; DEL and U+0080 to U+009F, some of which begin terminal commands,
 * are escaped as those below U+0020 are. mem_free it. NULL when out of memory, or where j is NULL. */
char *json_line(const json_t *j, int digits);
/* j as JSON for a message, cut to fit buf [n]; "nothing" where it is NULL. Returns buf. */
const char *json_show(const json_t *j, char *buf, size_t n);

/* For readers of files of our own. The error that key, in what where names, is not what was expected.
 * Returns -1. */
int json_wrong(const char *where, const char *key, const char *expected, const json_t *found, struct err *e);
/* ERR_FORMAT naming a key of o that is none of keys, which NULL ends. */
int json_only(const json_t *o, const char *where, const char *const *keys, struct err *e);
/* j in one line that reads back as the same numbers; j is given up. failures: mem_failures() before j was
 * built. NULL when out of memory, then or now; mem_free it. */
char *json_exact(json_t *j, uint64_t failures);
/* text, which is given up, and a newline as a file. text NULL: ERR_IO, out of memory. */
int json_put_file(char *text, const char *path, bool force, struct err *e);

#endif
