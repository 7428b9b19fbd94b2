/* no_backend.c - what the library asks of a device, for `make fuzz`: parsers run without one, so nothing here
 * is called. */
#include <stdlib.h>

#include "../../kernels/kernels.h"

const char *kn_message(const struct kn_backend *be)
{
    (void)be;
    abort();
}
