/* common.c - see bench.h. */
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../../common/base/io.h"
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "bench.h"

int bench_emit(json_t *j, struct err *e)
{
    char *text = json_line(j, 6);
    json_decref(j);
    if (!text || mem_failures()) {
        free(text);
        return err_set(e, ERR_IO, "out of memory (a line of JSON)");
    }
    int bad = printf("%s\n", text) < 0 || fflush(stdout);
    free(text);
    return bad ? err_errno(e, "%s: cannot write", redirect_name()) : 0;
}

int bench_threads(const struct models *m)
{
    return m->threads > 0 ? m->threads : omp_get_num_procs();
}

/* "model name" of the first processor, as the kernel spells it. */
static void processor_name(char *out, size_t n)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, n, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(out, n, "%s", colon + 1 + strspn(colon + 1, " "));
        out[strcspn(out, "\n")] = 0;
        break;
    }
    if (f) fclose(f);
}

void bench_check_ctx(const struct cli *c, int32_t ctx, int32_t context)
{
    const int32_t need = context + SESSION_MAX_ROWS;
    if (ctx && ctx < need)
        cli_usage_error(c, "--ctx is too small (expected %d: --context %d and %d rows, got %d)", need,
                        context, SESSION_MAX_ROWS, ctx);
}

json_t *bench_machine(const struct models *m)
{
    char cpu[256];
    bool changed;
    const char *commit = cli_commit(&changed);
    char date[32] = "";
    const time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    processor_name(cpu, sizeof cpu);
    return json_pack("{s:s,s:s,s:s,s:i,s:s,s:s,s:s?,s:o,s:s}", "device", models_device(m), "kernels",
                     m->kernels ? m->kernels : "auto", "isa", kn_backend_isa(m->be), "threads",
                     kn_backend_threads(m->be), "processor", cpu, "version", DFLASH_VERSION, "commit", commit,
                     "changed", commit ? json_boolean(changed) : json_null(), "date", date);
}

json_t *bench_model_json(const char *path, const struct model *m)
{
    const char *base = strrchr(path, '/');
    const char *file = base ? base + 1 : path;
    const bool host = kn_op(m->be)->alloc_host != NULL;
    return json_pack("{s:o,s:o,s:s,s:i,s:i,s:I,s:i,s:I}", "file", json_text(file, strlen(file)), "name",
                     json_text(m->d->name, strlen(m->d->name)), "architecture", m->d->arch_name, "layers",
                     m->d->n_layer, "embedding", m->d->n_embd, "bytes_a_step", (json_int_t)m->bytes_step,
                     "experts_host", host ? m->n_host : 0, "experts_host_bytes",
                     host ? (json_int_t)model_host_bytes(m) : (json_int_t)0);
}

double bench_link(const struct models *m)
{
    const struct kn_ops *op = kn_op(m->be);
    const bool host = m->target->n_host || m->kv_host || m->kv_host_layers;
    const double speed = host && op->link_speed ? op->link_speed(m->be) : 0;
    return speed > 0 ? speed : NAN;
}

json_t *bench_target_json(const struct models *m)
{
    json_t *j = bench_model_json(m->target_path, m->target);
    if (j && m->keys.n) json_object_set_new(j, "override_kv", models_keys_json(m));
    return j;
}

int bench_read_tokens(const char *path, int32_t **ids, size_t *n, struct err *e)
{
    bool in = !strcmp(path, "-");
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "%s", path);
    int rc = io_read_tokens(fd, in ? "stdin" : path, ids, n, e);
    if (!in) close(fd);
    return rc;
}

int bench_redirect(struct redirect *r, const char *path, bool force, const struct models *m,
                   const char *const *more, int n, struct err *e)
{
    const char *inputs[MODELS_INPUTS + BENCH_INPUTS];
    int count = models_inputs(m, inputs);
    for (int i = 0; i < n && i < BENCH_INPUTS; i++) inputs[count++] = more[i];
    return redirect_open(r, path, force, inputs, count, e);
}

int bench_int_list(const char *flag, const char *text, int32_t *v, int room, int *n, int32_t min, int32_t max,
                   struct err *e)
{
    const char *p = text;
    *n = 0;
    while (*p) {
        char *end;
        errno = 0;
        long x = strtol(p, &end, 10);
        if (*p < '0' || *p > '9' || errno || (*end && *end != ',') || x < min || x > max || *n == room)
            return err_set(e, ERR_USAGE,
                           "%s: expected up to %d numbers from %d to %d with commas between, got '%s'", flag,
                           room, min, max, text);
        v[(*n)++] = (int32_t)x;
        if (*end && !end[1]) return err_set(e, ERR_USAGE, "%s: ends with a comma: '%s'", flag, text);
        p = *end ? end + 1 : end;
    }
    return *n ? 0 : err_set(e, ERR_USAGE, "%s: empty", flag);
}
