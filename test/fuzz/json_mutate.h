/* json_mutate.h - mutations of JSON by its structure, for targets that read JSON (json_mutate.c, linked by
 * `make fuzz`). */
#ifndef DFLASH_FUZZ_JSON_MUTATE_H
#define DFLASH_FUZZ_JSON_MUTATE_H

/* The keys and strings that the target's reader knows; NULL at the end, one or more before it. */
extern const char *const json_words[];

#endif
