/* harness.h - what the tests of the CUDA backend share: verdicts, device memory, random values.
 *
 * A case prints "ok   gpu/..." or "FAIL gpu/..." by verdict(), which counts; anything that must work and does
 * not ends the program: status 5 where the device failed, else 1. Random values depend on rnd_state alone. */
#ifndef DFLASH_TEST_GPU_HARNESS_H
#define DFLASH_TEST_GPU_HARNESS_H

#include "../../kernels/kernels.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern long passed, failed; /* verdicts so far */
void verdict(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void die(const char *what, const char *why) __attribute__((noreturn));
/* rc: of an operation of be, named `what`; ends the program with the backend's message unless it is 0. */
void must(struct kn_backend *be, const char *what, int rc);

/* `bytes` of be's memory, with a copy of what is at host unless that is NULL. */
void *put(struct kn_backend *be, const void *host, size_t bytes);
/* A copy of what is at p, to be given to free(). */
void *get(struct kn_backend *be, const void *p, size_t bytes);
void drop(struct kn_backend *be, void *p);
/* get, then drop. */
void *take(struct kn_backend *be, void *p, size_t bytes);

extern uint64_t rnd_state;
uint64_t rnd(void);
float gaussian(float sigma);             /* mean 0 */
float *gaussians(size_t n, float sigma); /* n of them, to be given to free() */

double seconds_now(void); /* of a clock that only rises */

#endif
