/* backend.c - opening a device by name. */
#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>

bool kn_cuda_built(void)
{
    return false;
}

int kn_cuda_devices(void)
{
    return 0;
}

const char *kn_message(const struct kn_backend *be)
{
    return ((const struct kn_backend_head *)be)->message;
}

const char *kn_backend_isa(const struct kn_backend *be)
{
    return ((const struct cpu_backend *)be)->isa->name;
}

int kn_backend_threads(const struct kn_backend *be)
{
    return ((const struct cpu_backend *)be)->threads;
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
        snprintf(msg, n, "device %s: built without CUDA", o->device);
        return KN_EDEVICE;
    }
    snprintf(msg, n, "device %s: unknown (expected cpu or cuda[:N])", o->device);
    return KN_EINVAL;
}

void kn_backend_close(struct kn_backend *be)
{
    if (be) cpu_close(be);
}
