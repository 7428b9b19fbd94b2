/* cases.c - the cases of lossless: the values of the axes, and which combinations of them are run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lossless.h"

/* 255..257: the drafter's window; 767..769 and 2304: its ring at the default chunk, and three times it. The
 * first eight are those of the pairwise set. */
const int prompt_len[] = {1, 40, 255, 256, 257, 767, 768, 769, 511, 512, 513, 2304};
/* The last thirteen only where --types names them. */
const char *target_type[TYPES] = {"bf16",    "f32",   "f16",   "q8_0",    "q4_k_m", "q4_0",
                                  "q5_0",    "q4_k",  "q5_k",  "q6_k",    "iq4_nl", "iq4_xs",
                                  "q3_k",    "q2_k",  "iq3_s", "iq3_xxs", "iq2_s",  "iq2_xs",
                                  "iq2_xxs", "iq1_s", "iq1_m", "mxfp4",   "wide"};
const char *const drafter_type[] = {"bf16",          "q8_0",           "q4_k_m",
                                    "dflash2-bf16",  "dflash2-q4_k_m", "dspark-bf16",
                                    "dspark-q4_k_m", "domino-bf16",    "domino-q4_k_m"};
const int block_rows[] = {8, 2, 5};
const int width_rows[] = {8, 1, 3};
const struct kn_sampler sampling[] = {
    {.temp = 0, .top_p = 1, .repeat_penalty = 1},
    {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1},
    {.temp = 1,
     .top_k = 40,
     .top_p = 0.9f,
     .min_p = 0.02f,
     .repeat_penalty = 1.1f,
     .repeat_last = 64,
     .seed = 7,
     .presence = 0.3f,
     .frequency = 0.1f},
    {.temp = 0.5f,
     .top_k = 200,
     .top_p = 0.95f,
     .min_p = 0.001f,
     .repeat_penalty = 1,
     .order = KN_ORDER_TOP_P_RAW | KN_ORDER_MIN_P_RAW | KN_ORDER_TOP_P_FIRST | KN_ORDER_MIN_P_FIRST,
     .seed = 3},
};
struct cache cache_type[CACHES] = {{"F16", {KN_F16, KN_F16}, false},
                                   {"BF16", {KN_BF16, KN_BF16}, false},
                                   {"F32", {KN_F32, KN_F32}, false},
                                   {"F32,BF16", {KN_F32, KN_BF16}, false},
                                   {"F16,BF16 and by layers", {KN_F16, KN_BF16}, true}};
const int chunk_rows[] = {512, 64, 17};
const char *const isa_name[] = {"avx512", "avx2", "scalar"};
const int thread_count[] = {1, 2, 3};
int axis_size[AXES] = {8, 10, 9, 3, 3, 4, 2, 5, 2, 3, 3, 3};

int isa_of[3], n_isa;
struct setting setting = {.device = "cpu"};

struct one_case *cases;
size_t n_cases;
static size_t room_cases;

static void add_case(const int *c)
{
    if (n_cases == room_cases)
        cases = realloc(cases, (room_cases = room_cases ? 2 * room_cases : 256) * sizeof *cases);
    memcpy(cases[n_cases++].c, c, sizeof cases->c);
}

static int by_models(const void *a, const void *b)
{
    static const enum axis order[] = {ISA,      THREADS, TARGET, DRAFTER, CACHE, PROMPT,
                                      SAMPLING, GREEDY,  BLOCK,  WIDTH,   CHUNK, RESUME};
    const int *x = ((const struct one_case *)a)->c, *y = ((const struct one_case *)b)->c;
    for (int i = 0; i < AXES; i++)
        if (x[order[i]] != y[order[i]]) return x[order[i]] - y[order[i]];
    return 0;
}

void cases_sort(void)
{
    qsort(cases, n_cases, sizeof *cases, by_models);
}

int case_width(const int *c)
{
    return width_rows[c[WIDTH]] < block_rows[c[BLOCK]] ? width_rows[c[WIDTH]] : block_rows[c[BLOCK]];
}

void case_describe(const int *c, char *out, size_t n)
{
    snprintf(out, n,
             "prompt %d target %s drafter %s block %d width %d sampling %d%s cache %s resume %d chunk %d isa "
             "%s threads %d",
             prompt_len[c[PROMPT]], target_type[c[TARGET]], drafter_type[c[DRAFTER]], block_rows[c[BLOCK]],
             width_rows[c[WIDTH]], c[SAMPLING], c[GREEDY] ? " greedy drafts" : "", cache_type[c[CACHE]].name,
             c[RESUME], chunk_rows[c[CHUNK]], setting.on_cpu ? isa_name[isa_of[c[ISA]]] : setting.device,
             thread_count[c[THREADS]]);
}

/* Scalar code is for comparing bits, not for long prompts */
static bool allowed(const int *c)
{
    return !setting.on_cpu || isa_of[c[ISA]] != 2 || prompt_len[c[PROMPT]] <= 40;
}

/* ---- every pair of values of two axes ---- */
static unsigned char seen[AXES][AXES][CACHES][CACHES];

static int gain(const int *c)
{
    int g = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) g += !seen[a][b][c[a]][c[b]];
    return g;
}

/* Of quantised caches each once, half of them resumed; with all else they are paired by --all. */
static void caches_once(void)
{
    for (int a = 0; a < AXES; a++)
        for (int v = 0; v < CACHES; v++)
            for (int k = 0; k < CACHES; k++) {
                if (a < CACHE) seen[a][CACHE][v][k] = 1;
                if (a > CACHE) seen[CACHE][a][k][v] = a != RESUME || v != k % 2;
            }
}

void cases_pairwise(void)
{
    uint32_t x = 12345;
    if (setting.quantised) caches_once();
    for (;;) {
        int best[AXES], best_gain = 0;
        for (int tries = 0; tries < 400; tries++) {
            int c[AXES];
            for (int a = 0; a < AXES; a++) {
                x = x * 1664525u + 1013904223u;
                c[a] = (int)((x >> 8) % (unsigned)axis_size[a]);
            }
            for (int a = 0; a < AXES; a++) { /* improve one axis at a time */
                int keep = c[a], top = -1, at = keep;
                for (int v = 0; v < axis_size[a]; v++) {
                    c[a] = v;
                    if (allowed(c) && gain(c) > top) {
                        top = gain(c);
                        at = v;
                    }
                }
                c[a] = at;
            }
            if (allowed(c) && gain(c) > best_gain) {
                best_gain = gain(c);
                memcpy(best, c, sizeof best);
            }
        }
        if (!best_gain) return;
        for (int a = 0; a < AXES; a++)
            for (int b = a + 1; b < AXES; b++) seen[a][b][best[a]][best[b]] = 1;
        add_case(best);
    }
}

/* Every combination of the axes in vary, the others at their first value, but for what proposals are. */
static void product(const enum axis *vary, int n, int greedy)
{
    int c[AXES] = {[GREEDY] = greedy};
    for (;;) {
        if (allowed(c)) add_case(c);
        int i = n - 1;
        while (i >= 0 && ++c[vary[i]] == axis_size[vary[i]]) c[vary[i--]] = 0;
        if (i < 0) return;
    }
}

/* All that shapes a stream and its drafts, and all that must not, crossed with the types, the sampling and
 * the prompts. */
void cases_everything(void)
{
    static const enum axis what[] = {TARGET, DRAFTER, CACHE, PROMPT, SAMPLING, BLOCK, WIDTH};
    static const enum axis how[] = {ISA, THREADS, CHUNK, RESUME, TARGET, PROMPT, SAMPLING};
    static const enum axis drafts[] = {TARGET, PROMPT, SAMPLING, BLOCK, WIDTH};
    static const enum axis kv_what[] = {CACHE, PROMPT, SAMPLING, BLOCK};
    static const enum axis kv_how[] = {CACHE, ISA, THREADS, CHUNK, RESUME};
    axis_size[PROMPT] = sizeof prompt_len / sizeof *prompt_len;
    if (setting.quantised) {
        axis_size[SAMPLING] = 3;
        product(kv_what, 4, 0);
        product(kv_how, 5, 0);
        return;
    }
    product(drafts, 5, 1);
    axis_size[SAMPLING] = 3;
    product(what, 7, 0);
    product(how, 7, 0);
}

void cases_keep_part(unsigned part, unsigned n_parts)
{
    static const enum axis shared[] = {TARGET, CACHE, PROMPT, SAMPLING};
    size_t kept_cases = 0;
    for (size_t i = 0; i < n_cases; i++) {
        uint32_t h = 0;
        for (int a = 0; a < 4; a++) h = (h + (uint32_t)cases[i].c[shared[a]] + 1) * 2654435761u;
        if ((h >> 8) % n_parts == part) cases[kept_cases++] = cases[i];
    }
    n_cases = kept_cases;
}

int cases_take_types(char *list)
{
    const char *kept_types[TYPES];
    int n = 0, known = TYPES;
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        int i = 0;
        while (i < known && strcmp(name, target_type[i])) i++;
        if (i == known || n == known) return -1;
        kept_types[n++] = target_type[i];
    }
    memcpy(target_type, kept_types, (size_t)n * sizeof *kept_types);
    axis_size[TARGET] = n;
    return n ? 0 : -1;
}

void cases_take_caches(void)
{
    static const uint32_t types[] = {KN_F16, KN_BF16, KN_F32, KN_Q8_0, KN_Q5_0, KN_Q4_0, KN_TQ3_0};
    int n = 0;
    setting.quantised = true;
    for (int i = 0; i < 56; i++) {
        const struct kn_kv_types kv = {types[i % 7], types[i < 49 ? i / 7 : (i * 3 + 1) % 7]};
        cache_type[n].kv = kv;
        cache_type[n].layers = i >= 49;
        snprintf(cache_type[n++].name, sizeof cache_type->name, "%s,%s%s", kn_kv_name(kv.k), kn_kv_name(kv.v),
                 i >= 49 ? " and by layers" : "");
    }
    axis_size[CACHE] = n;
    axis_size[DRAFTER] = 5; /* caches of the kinds behind them are alike */
}

void cases_find_isas(void)
{
    for (int i = 0; i < 3 && setting.on_cpu; i++) {
        char msg[256];
        struct kn_backend *probe;
        struct kn_open o = {.device = "cpu", .isa = isa_name[i], .threads = 1};
        if (kn_backend_open(&probe, &o, msg, sizeof msg)) continue;
        kn_backend_close(probe);
        isa_of[n_isa++] = i;
    }
    if (!setting.on_cpu) n_isa = axis_size[THREADS] = 1;
    axis_size[ISA] = n_isa;
}
