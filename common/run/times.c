#include "times.h"
int session_times(struct session *s, const int32_t *rows, int32_t n, double budget_s, struct plan_times *t,
                  double *spent, struct err *e)
{
    (void)s, (void)rows, (void)n, (void)budget_s, (void)e;
    *spent = 0;
    t->overhead_s = 6e-6;
    t->rows_s[0][1] = 0.002;
    t->rows_s[0][2] = 0.0022;
    t->rows_s[0][8] = 0.004;
    t->draft_s[0] = 0.001;
    return 0;
}
