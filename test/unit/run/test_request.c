/* test_request.c - lines of a resident process, word by word: what each asks for, what it owes the stream,
 * and what is wrong with those that are. (Any bytes: test/fuzz/fuzz_request.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "../../../common/base/mem.h"
#include "../../../common/run/request.h"

static struct request read_line(const char *line)
{
    struct err e = {0};
    struct request r;
    assert_int_equal(request_read(&r, line, strlen(line), &e), 0);
    return r;
}

static const struct {
    const char *line;
    enum request_kind kind;
    bool streams;
    const char *code;
} words[] = {
    {"", REQUEST_NONE, false, NULL},
    {" \t\r", REQUEST_NONE, false, NULL},
    {"./p 5", REQUEST_PROMPT, true, NULL},
    {" a/b\t0 \r", REQUEST_PROMPT, true, NULL},
    {"./p 5 snap=64:3 samp=0.5,1,0,1,2", REQUEST_PROMPT, true, NULL},
    {"./p", REQUEST_BAD, true, "bad_args"},
    {"./p 5 6", REQUEST_BAD, true, "bad_args"},
    {"./p -1", REQUEST_BAD, true, "bad_args"},
    {"./p 1e3", REQUEST_BAD, true, "bad_args"},
    {"./p 1073741825", REQUEST_BAD, true, "bad_args"},
    {"./p 5 snap=64", REQUEST_BAD, true, "bad_args"},
    {"prompt 5", REQUEST_BAD, true, "unknown_command"},
    {"Generate a 5 b", REQUEST_BAD, true, "unknown_command"},
    {"SNAPSHOT_THIN 3", REQUEST_BAD, true, "unknown_command"},
    {"generate a 5 b", REQUEST_GENERATE, false, NULL},
    {"generate a 5", REQUEST_BAD, false, "bad_args"},
    {"RESTORE 63 p 5", REQUEST_RESTORE, true, NULL},
    {"RESTORE 64 p 5", REQUEST_BAD, true, "bad_args"},
    {"RESTORE x p 5", REQUEST_BAD, true, "bad_args"},
    {"RESTORE 1 p", REQUEST_BAD, true, "bad_args"},
    {"SNAPSHOT 0", REQUEST_SNAPSHOT, false, NULL},
    {"SNAPSHOT -1", REQUEST_BAD, false, "bad_args"},
    {"FREE_SNAPSHOT 0", REQUEST_FREE, false, NULL},
    {"LIST_SLOTS", REQUEST_LIST, false, NULL},
    {"LIST_SLOTS 1", REQUEST_BAD, false, "bad_args"},
    {"park", REQUEST_PARK, true, NULL},
    {"unpark draft", REQUEST_UNPARK, true, NULL},
    {"park both", REQUEST_BAD, true, "bad_args"},
    {"free drafter", REQUEST_FREE_DRAFTER, true, NULL},
    {"free", REQUEST_BAD, true, "bad_args"},
    {"compress a 500 b", REQUEST_COMPRESS, true, NULL},
    {"compress\ta\t1000\tb\tnopark", REQUEST_COMPRESS, true, NULL},
    {"compress a 500", REQUEST_BAD, true, "bad_args"},
    {"compress a 0 b", REQUEST_BAD, true, "bad_args"},
    {"compress a 1001 b", REQUEST_BAD, true, "bad_args"},
    {"compress a 0.5 b", REQUEST_BAD, true, "bad_args"},
    {"compress a 500 b park", REQUEST_BAD, true, "bad_args"},
    {"compress a 500 b nopark c", REQUEST_BAD, true, "bad_args"},
    {"quit", REQUEST_QUIT, false, NULL},
    {"exit", REQUEST_QUIT, false, NULL},
};

static void test_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct request r = read_line(words[i].line);
        if (r.kind != words[i].kind || r.streams != words[i].streams || r.json)
            fail_msg("'%s': %d", words[i].line, (int)r.kind);
        if (words[i].code)
            assert_string_equal(r.code, words[i].code);
        else
            assert_null(r.code);
        request_free(&r);
    }
}

/* The order of samp= is not that of the flags; seed 0 there asks for a random one. */
static void test_samp(void **state)
{
    const struct kn_sampler own = {
        .temp = 0.25f, .top_p = 1, .min_p = 0.125f, .repeat_penalty = 1, .repeat_last = 64, .seed = 9};
    struct request r = read_line("./p 5 samp=0.5,0.75,40,1.5,7,-0.5,2");
    struct kn_sampler k = request_sampler(&r, &own);
    (void)state;
    assert_true(k.temp == 0.5f && k.top_p == 0.75f && k.top_k == 40 && k.repeat_penalty == 1.5f &&
                k.seed == 7);
    assert_true(k.frequency == -0.5f && k.presence == 2 && k.min_p == 0.125f && k.repeat_last == 64 &&
                !r.random_seed);
    request_free(&r);
    r = read_line("./p 5 samp=1,1,0,1,0");
    assert_true(r.random_seed && r.kind == REQUEST_PROMPT);
    request_free(&r);
    r = read_line("./p 5");
    k = request_sampler(&r, &own);
    assert_memory_equal(&k, &own, sizeof k);
    request_free(&r);
    static const char *const bad[] = {"1,1,0,1",         "1,1,0,1,x",   "1,0,0,1,1", "1,2,0,1,1",
                                      "-1,1,0,1,1",      "1,1,1.5,1,1", "1,1,0,0,1", "1,1,0,1,1,9999",
                                      "1,1,0,1,1,0,0,0", "nan,1,0,1,1", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[64] = "./p 5 samp=";
        r = read_line(strcat(line, bad[i]));
        if (r.kind != REQUEST_BAD || strcmp(r.code, "bad_args")) fail_msg("%s", line);
        request_free(&r);
    }
    r = read_line("RESTORE 1 p 2 snap=100:5");
    assert_true(r.snap_pos == 100 && r.snap_slot == 5 && r.slot == 1 && r.n == 2 && !strcmp(r.path, "p"));
    request_free(&r);
    r = read_line("./p 2 snap=0:5"); /* no snapshot, and no error */
    assert_true(r.kind == REQUEST_PROMPT && !r.snap_pos);
    request_free(&r);
}

static void test_json(void **state)
{
    static const struct {
        const char *line;
        enum request_kind kind;
        const char *msg; /* a part of it */
    } t[] = {
        {"{\"prompt\":[1,2],\"n\":3}", REQUEST_PROMPT, NULL},
        {" {\"op\":\"generate\",\"file\":\"a\"}", REQUEST_PROMPT, NULL},
        {"{\"restore\":3,\"append\":true}", REQUEST_PROMPT, NULL},
        {"{\"op\":\"stats\"}", REQUEST_STATS, NULL},
        {"{\"op\":\"cancel\",\"cancel\":\"x\"}", REQUEST_CANCEL, NULL},
        {"{\"op\":\"cancel\",\"line\":true}", REQUEST_CANCEL, NULL},
        {"{\"op\":\"save\",\"slot\":3,\"file\":\"x\"}", REQUEST_SAVE, NULL},
        {"{\"op\":\"quit\"}", REQUEST_QUIT, NULL},
        {"{", REQUEST_BAD, "bad JSON"},
        {"{}", REQUEST_BAD, "no prompt"},
        {"{\"prompt\":[1],\"file\":\"a\"}", REQUEST_BAD, "expected one of them"},
        {"{\"prompt\":[1],\"file\":\"a\",\"file\":\"b\"}", REQUEST_BAD, "duplicate"},
        {"{\"prompt\":[1],\"temprature\":1}", REQUEST_BAD, "unknown key"},
        {"{\"prompt\":[1],\"n\":1.5}", REQUEST_BAD, "n: expected a whole number"},
        {"{\"prompt\":[1],\"seed\":-1}", REQUEST_BAD, "seed: expected"},
        {"{\"prompt\":[1],\"top_p\":0}", REQUEST_BAD, "top_p out of range (expected above 0 to 1, got 0)"},
        {"{\"prompt\":[1],\"width\":65}", REQUEST_BAD, "width: expected"},
        {"{\"prompt\":[1],\"tree\":64}", REQUEST_BAD, "tree: expected"},
        {"{\"prompt\":[1],\"tree\":6,\"width\":4}", REQUEST_BAD, "both say the rows"},
        {"{\"prompt\":[1],\"tree\":0,\"width\":4}", REQUEST_PROMPT, NULL},
        {"{\"prompt\":[1],\"stop_text\":[\"\"]}", REQUEST_BAD, "not empty"},
        {"{\"prompt\":[-1]}", REQUEST_BAD, "token ids"},
        {"{\"prompt\":[1],\"append\":true}", REQUEST_BAD, "append"},
        {"{\"prompt\":[1],\"state\":\"a\",\"restore\":1}", REQUEST_BAD, "expected one of them"},
        {"{\"prompt\":[1],\"timeout_s\":0}", REQUEST_BAD, "timeout_s"},
        {"{\"op\":\"save\",\"slot\":3}", REQUEST_BAD, "file is missing"},
        {"{\"op\":\"cancel\"}", REQUEST_BAD, "expected cancel"},
        {"{\"op\":\"stats\",\"n\":1}", REQUEST_BAD, "unknown key"},
        {"{\"op\":\"nothing\"}", REQUEST_BAD, "op: expected generate"},
        {"{\"id\":1.5,\"op\":\"stats\"}", REQUEST_BAD, "id: expected"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct request r = read_line(t[i].line);
        if (r.kind != t[i].kind || !r.json || r.streams || (t[i].msg && !strstr(r.msg, t[i].msg)))
            fail_msg("%s: %d %s", t[i].line, (int)r.kind, r.msg);
        request_free(&r);
    }
    struct request r = read_line(
        "{\"id\":\"a\",\"prompt\":[7],\"stop\":[8],\"stop_text\":[\"x\",\"y\"],\"seed\":0,\"width\":\"auto\","
        "\"ignore_eos\":false,\"cache\":false,\"snapshot\":4,\"text\":true,\"temp\":0.5}");
    assert_true(r.n == -1 && r.n_ids == 1 && r.ids[0] == 7 && r.stops[0] == 8 && r.n_texts == 2 &&
                r.keep == 4 && r.text);
    assert_true(r.given == (REQUEST_SEED | REQUEST_WIDTH | REQUEST_IGNORE_EOS | REQUEST_TEMP) &&
                !r.random_seed);
    assert_true(r.no_cache && !r.ignore_eos && r.width == 0 && !strcmp(json_string_value(r.id), "a"));
    request_free(&r);
}

/* Whichever allocation fails, a request is refused whole, and nothing leaks. */
static void test_no_memory(void **state)
{
    static const char *const lines[] = {
        "generate ./a 5 ./b samp=1,1,0,1,2", "compress ./a 500 ./b nopark",
        "{\"id\":\"a\",\"file\":\"f\",\"stop\":[8],\"stop_text\":[\"x\",\"y\"],\"save_state\":\"s\"}"};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (uint64_t nth = 1, failed = 1; failed; nth++) {
            struct err e = {0};
            struct request r;
            const uint64_t before = mem_failures();
            mem_fail_one(nth);
            const int rc = request_read(&r, lines[i], strlen(lines[i]), &e);
            mem_fail_at(0);
            failed = mem_failures() - before;
            assert_int_equal(rc, failed ? -1 : 0);
            if (failed) assert_int_equal(e.code, ERR_IO);
            request_free(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_samp),
                                       cmocka_unit_test(test_json), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests_name("request", tests, NULL, NULL);
}
