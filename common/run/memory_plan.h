/* memory_plan.h - the memory of a device that a run will take, known before any is taken.
 *
 * A planner loads the models and makes sessions on a backend that counts: it has the device's sizes
 * (kn_ops.memory) and takes nothing. So the plan is made by the code that it is a plan for. Devices whose
 * memory is the host's have no plan.
 *
 * A planner owns its models; it borrows the backend, which outlives it. */
#ifndef DFLASH_MEMORY_PLAN_H
#define DFLASH_MEMORY_PLAN_H

#include "session.h"

struct memory_plan { /* bytes */
    uint64_t weights;
    uint64_t caches;      /* keys and values, recurrent state */
    uint64_t activations; /* of a pass, and what a session keeps beside its caches */
    uint64_t scratch;     /* of the backend's operations, with what it asks to leave free, and where cycles
                             are timed first a copy of the recurrent state */
    uint64_t all;
    uint64_t free, total; /* of the device, now */
    uint64_t host;        /* of the host's memory, for what of this stays there */
    uint64_t host_free;   /* 0: unknown */
};

struct memory_planner;
/* What a plan is of: paths of the files, and how each is read (NULL: as it says). drafter and mtp, an MTP
 * block beside it, may be NULL. placed: NULL, or whose experts stay in the host's memory as the target's will
 * (model_place). */
struct memory_plan_of {
    const char *target, *drafter, *mtp;
    const struct desc_override *target_override, *drafter_override, *mtp_override;
    const struct model *placed;
};
/* Errors: those of model_load. */
int memory_plan_open(struct memory_planner **p, struct kn_backend *be, const struct memory_plan_of *of,
                     struct err *e);
void memory_plan_close(struct memory_planner *p);
/* What a session with o takes, its models included where loaded is false. Errors: those of session_new. */
int memory_plan_session(struct memory_planner *p, const struct session_options *o, bool loaded,
                        struct memory_plan *plan, struct err *e);
/* o->kv_host becomes the least number, from what it is, with which the session fits, or the most that helps.
 * Errors: those of session_new. */
int memory_plan_kv_host(struct memory_planner *p, struct session_options *o, bool loaded, struct err *e);
/* 0 if it fits; else ERR_DEVICE (ERR_IO: the host's memory): what is needed, what is free, and with what it
 * would fit: the largest context up to o->ctx, a smaller cache type, or more experts in the host's memory. */
int memory_plan_check(struct memory_planner *p, const struct session_options *o, bool loaded,
                      const struct memory_plan *plan, struct err *e);

#endif
