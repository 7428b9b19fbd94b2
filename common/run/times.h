/* times.h - interim */
#ifndef DFLASH_TIMES_H
#define DFLASH_TIMES_H
#include "plan_times.h"
#include "session.h"
int session_times(struct session *s, const int32_t *rows, int32_t n, double budget_s, struct plan_times *t,
                  double *spent, struct err *e);
#endif
