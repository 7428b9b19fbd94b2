/* backend.c - opening a device by name. Compiled twice where CUDA is built: with KN_CUDA for the programs
 * that link it, and without for all others. */
#include "cpu/cpu.h"
#ifdef KN_CUDA
#include "cuda/core/cuda.h"
#endif

#include <stdio.h>
#include <string.h>

bool kn_cuda_built(void)
{
#ifdef KN_CUDA
    return true;
#else
    return false;
#endif
}

int kn_cuda_devices(void)
{
#ifdef KN_CUDA
    return cuda_devices();
#else
    return 0;
#endif
}

static bool is_cpu(const struct kn_backend *be)
{
    return !strcmp(((const struct kn_backend_head *)be)->op->name, "cpu");
}

const char *kn_message(const struct kn_backend *be)
{
    return ((const struct kn_backend_head *)be)->message;
}

const char *kn_backend_isa(const struct kn_backend *be)
{
    return is_cpu(be) ? ((const struct cpu_backend *)be)->isa->name : "";
}

int kn_backend_threads(const struct kn_backend *be)
{
    return is_cpu(be) ? ((const struct cpu_backend *)be)->threads : 0;
}

int kn_backend_open(struct kn_backend **be, const struct kn_open *o, char *msg, size_t n)
{
    *be = NULL;
    if (n) msg[0] = 0;
    if (!o->device) {
        snprintf(msg, n, "no device named (expected cpu or cuda[:N])");
        return KN_EINVAL;
    }
    if (!strcmp(o->device, "cpu")) return cpu_open(be, o, msg, n);
    if (!strcmp(o->device, "cuda") || !strncmp(o->device, "cuda:", 5)) {
#ifdef KN_CUDA
        return cuda_open(be, o, msg, n);
#else
        snprintf(msg, n, "device %s: built without CUDA", o->device);
        return KN_EDEVICE;
#endif
    }
    snprintf(msg, n, "device %s: unknown (expected cpu or cuda[:N])", o->device);
    return KN_EINVAL;
}

void kn_backend_close(struct kn_backend *be)
{
    if (!be) return;
#ifdef KN_CUDA
    if (!is_cpu(be)) {
        cuda_close(be);
        return;
    }
#endif
    cpu_close(be);
}
