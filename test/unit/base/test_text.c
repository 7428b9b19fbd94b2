/* test_text.c - what a terminal may have of a file's text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../common/base/err.h"
#include "../../../common/base/text.h"

/* Against a table of the Unicode Standard (3.9, well-formed UTF-8): every lead byte with every second byte,
 * and each code point by its own form. */
static void test_char(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x110000; c++) {
        char s[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (n == 1) s[0] = (char)c;
        if (n == 2) s[0] = (char)(0xc0 | c >> 6), s[1] = (char)(0x80 | (c & 63));
        if (n == 3)
            s[0] = (char)(0xe0 | c >> 12), s[1] = (char)(0x80 | (c >> 6 & 63)),
            s[2] = (char)(0x80 | (c & 63));
        if (n == 4)
            s[0] = (char)(0xf0 | c >> 18), s[1] = (char)(0x80 | (c >> 12 & 63)),
            s[2] = (char)(0x80 | (c >> 6 & 63)), s[3] = (char)(0x80 | (c & 63));
        const int control = c < 0x20 || (c >= 0x7f && c < 0xa0), surrogate = c >= 0xd800 && c < 0xe000;
        char *exact = malloc(n); /* exactly as long, for the sanitizer */
        memcpy(exact, s, n);
        assert_int_equal(text_char(exact, n), control || surrogate ? 0 : n);
        if (n > 1) assert_int_equal(text_char(exact, n - 1), 0); /* cut */
        free(exact);
    }
    assert_int_equal(text_char("", 0), 0);
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3(",
                                      "\xe2\x82(",
                                      "\xe2(\xa1",
                                      "\xf0\x90\x80("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(text_char(bad[i], strlen(bad[i])), 0);
}

static void test_printable(void **state)
{
    (void)state;
    char s[] = "a\x1b[2J\tb\x7f \xc3\xa9 \xc2\x9b"
               "31m \xff\xe2\x82";
    assert_string_equal(text_printable(s), "a?[2J?b? \xc3\xa9 ??31m ???");
    char empty[] = "";
    assert_string_equal(text_printable(empty), "");
    /* messages, hints and prefixes of errors */
    struct err e = {0};
    err_set(&e, ERR_FORMAT, "x\x1b%s", "\xc2\x9b");
    err_hint(&e, "y\x1b%s", "\xff");
    err_prefix(&e, "z\n%s", "\xc2\x9b");
    assert_string_equal(e.msg, "z???: x???");
    assert_string_equal(e.hint, "y??");
}

static void test_quote(void **state)
{
    (void)state;
    char out[40];
    static const struct {
        const char *s;
        size_t n, max, size;
        const char *want;
    } t[] = {
        {"ab", 2, 9, 40, "\"ab\""},
        {"a\"b\\c\nd\x1b"
         "e",
         9, 40, 40, "\"a\\\"b\\\\c\\nd\\x1be\""},
        {"\xc2\x9b\xff", 3, 40, 40, "\"\\xc2\\x9b\\xff\""},
        {"abc", 3, 2, 40, "\"ab\"..."},
        {"a\xc3\xa9z", 4, 2, 40, "\"a\"..."}, /* not within a character */
        {"a\xc3\xa9z", 4, 3, 40, "\"a\xc3\xa9\"..."},
        {"a\0b", 3, 40, 40, "\"a\\x00b\""},
        {"abcdefgh", 8, 40, 9, "\"abc\"..."},
        {"\x01\x01", 2, 40, 9, "\"\"..."},
        {"", 0, 40, 6, "\"\""},
        {"a", 1, 40, 5, ""},
        {"a", 1, 40, 1, ""},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *exact = malloc(t[i].size);
        assert_string_equal(text_quote(exact, t[i].size, t[i].s, t[i].n, t[i].max), t[i].want);
        free(exact);
    }
    text_quote(out, 0, "a", 1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_char), cmocka_unit_test(test_printable),
                                       cmocka_unit_test(test_quote)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
