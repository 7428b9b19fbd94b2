/* json_mutate.c - libFuzzer's mutations of JSON by its structure: members are dropped, named anew, moved,
 * doubled and exchanged, values changed within their type or for another type, and subtrees taken from
 * another input. Changes of bytes, which libFuzzer makes itself, mostly end in text that is no JSON; a
 * quarter of the mutations are these.
 *
 * An input may be several texts, a NUL byte between them: one of them is changed. The target gives the words
 * that its reader knows (json_words): keys and strings are taken from there half of the time. */
#include "json_mutate.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t n_a, const uint8_t *b, size_t n_b, uint8_t *out,
                                 size_t max, unsigned seed);

static uint64_t state;

static unsigned below(size_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return n ? (unsigned)((state >> 20) % n) : 0;
}

static void begin(unsigned seed)
{
    state = 0x9e3779b97f4a7c15u ^ seed;
    for (int i = 0; i < 4; i++) below(1);
}

/* ---- places in a tree ---- */

/* A value and where it hangs: key in an object, index in an array; parent NULL at the root. */
struct place {
    json_t *parent, *v;
    const char *key;
    size_t index;
};

enum {
    WIDE = 24
}; /* members of a container that are looked at, or a vocabulary would be all that ever changes */

/* Each value below v, or v, with the same probability: *seen counts. */
static void choose(json_t *parent, const char *key, size_t index, json_t *v, unsigned *seen, struct place *p)
{
    const char *k;
    json_t *w;
    size_t i, n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    if (!below(++*seen)) *p = (struct place){parent, v, key, index};
    json_object_foreach(v, k, w) if (below(n) < WIDE) choose(v, k, 0, w, seen, p);
    json_array_foreach(v, i, w) if (below(n) < WIDE) choose(v, NULL, i, w, seen, p);
}

static struct place any_place(json_t *root)
{
    struct place p = {NULL, root, NULL, 0};
    unsigned seen = 0;
    choose(NULL, NULL, 0, root, &seen, &p);
    return p;
}

/* Takes v. A root is replaced too. */
static void put_at(json_t **root, const struct place *p, json_t *v)
{
    char key[256];
    if (!v) return;
    if (!p->parent) {
        json_decref(*root);
        *root = v;
    } else if (json_is_object(p->parent)) {
        if (strlen(p->key) < sizeof key) {
            strcpy(key, p->key); /* it belongs to the member that goes */
            json_object_set_new_nocheck(p->parent, key, v);
        } else
            json_decref(v);
    } else {
        json_array_set_new(p->parent, p->index, v);
    }
}

/* ---- new values ---- */

static const char *word(void)
{
    size_t n = 0;
    while (json_words[n]) n++;
    return json_words[below(n)];
}

static json_t *number(const json_t *old)
{
    static const json_int_t whole[] = {
        0, 1, -1, 2, 3, 8, 16, 64, 255, 511, 512, 1024, 2147483647, -2147483647 - 1, 4294967296, INT64_MAX};
    static const double real[] = {
        0.0, 0.5, 1.0, -1.0, 0.25, 32.0, 1e-6, 1e4, 1e6, 1e30, 1e308, 9007199254740992.0, 1.5};
    json_int_t x = json_integer_value(old);
    switch (below(5)) {
    case 0: return json_integer(whole[below(sizeof whole / sizeof *whole)]);
    case 1: return json_real(real[below(sizeof real / sizeof *real)]);
    case 2: return json_integer(x < INT64_MAX ? x + 1 : x);
    case 3: return json_integer(x > INT64_MIN ? x - 1 : x);
    default: return json_is_real(old) ? json_real(json_real_value(old) / 2) : json_real((double)x);
    }
}

static json_t *string(const json_t *old)
{
    char text[128];
    size_t n = json_string_length(old);
    if (below(2) || !n) return json_string_nocheck(below(40) ? word() : "");
    if (n > 100) n = 100;
    memcpy(text, json_string_value(old), n);
    switch (below(3)) {
    case 0: n -= below(n) + 1; break;
    case 1: text[below(n)] = (char)(' ' + below(95)); break;
    default: text[n++] = (char)('a' + below(26));
    }
    return json_stringn(text, n); /* NULL where a character was cut: no change */
}

static json_t *fresh(unsigned depth)
{
    json_t *v;
    switch (below(depth < 3 ? 9 : 7)) {
    case 0: return json_null();
    case 1: return json_boolean(below(2));
    case 2:
    case 3: return number(NULL);
    case 4:
    case 5: return json_string_nocheck(word());
    case 6: return below(2) ? json_object() : json_array();
    case 7:
        v = json_array();
        for (unsigned i = below(4) + 1; i--;) json_array_append_new(v, fresh(depth + 1));
        return v;
    default:
        v = json_object();
        for (unsigned i = below(3) + 1; i--;) json_object_set_new_nocheck(v, word(), fresh(depth + 1));
        return v;
    }
}

/* Another value of its type; of a container, one with one more member. */
static json_t *similar(json_t *v)
{
    json_t *copy;
    switch (json_typeof(v)) {
    case JSON_STRING: return string(v);
    case JSON_INTEGER:
    case JSON_REAL: return number(v);
    case JSON_OBJECT:
        copy = json_deep_copy(v);
        json_object_set_new_nocheck(copy, word(), fresh(1));
        return copy;
    case JSON_ARRAY:
        copy = json_deep_copy(v);
        json_array_insert_new(copy, below(json_array_size(copy) + 1),
                              json_array_size(copy) && below(2)
                                  ? json_deep_copy(json_array_get(copy, below(json_array_size(copy))))
                                  : fresh(1));
        return copy;
    default: return below(3) ? json_boolean(!json_is_true(v)) : json_null();
    }
}

/* ---- one change ---- */

static void drop(const struct place *p)
{
    char key[256];
    if (!p->parent) return;
    if (json_is_array(p->parent))
        json_array_remove(p->parent, p->index);
    else if (strlen(p->key) < sizeof key)
        json_object_del(p->parent, strcpy(key, p->key));
}

static void name_anew(const struct place *p)
{
    if (!p->parent || !json_is_object(p->parent)) return;
    json_t *v = json_incref(p->v);
    drop(p);
    json_object_set_new_nocheck(p->parent, word(), v);
}

/* donor: where subtrees come from; the tree itself, or another input's. */
static void change(json_t **root, json_t *donor)
{
    struct place p = any_place(*root), q = any_place(donor);
    json_t *v;
    switch (below(8)) {
    case 0: drop(&p); break;
    case 1: name_anew(&p); break;
    case 2: put_at(root, &p, fresh(0)); break;
    case 3: put_at(root, &p, json_deep_copy(q.v)); break;
    case 4: /* a member of the donor under its own name */
        if (json_is_object(p.v) && q.key)
            json_object_set_new_nocheck(p.v, q.key, json_deep_copy(q.v));
        else if (json_is_array(p.v))
            json_array_append_new(p.v, json_deep_copy(q.v));
        else
            put_at(root, &p, similar(p.v));
        break;
    case 5: /* one level more, or one less */
        v = below(2) ? json_array() : json_object();
        if (json_is_array(v))
            json_array_append_new(v, json_deep_copy(p.v));
        else
            json_object_set_new_nocheck(v, word(), json_deep_copy(p.v));
        put_at(root, &p, v);
        break;
    default: put_at(root, &p, similar(p.v));
    }
}

/* ---- texts ---- */

/* The text of data that is changed: n of them, NUL between; *from and *to its bounds. */
static void a_text(const uint8_t *data, size_t size, size_t *from, size_t *to)
{
    unsigned n = 1, want;
    for (size_t i = 0; i < size; i++) n += !data[i];
    want = below(n);
    *from = 0;
    for (size_t i = 0; i < size && want; i++)
        if (!data[i] && !--want) *from = i + 1;
    const uint8_t *nul = *from < size ? memchr(data + *from, 0, size - *from) : NULL;
    *to = nul ? (size_t)(nul - data) : size;
}

static json_t *parse(const uint8_t *p, size_t n)
{
    return n ? json_loadb((const char *)p, n, JSON_DECODE_ANY, NULL) : NULL;
}

/* data[from .. to) replaced by root's text, into out (which may be data); 0 where it does not fit. */
static size_t put_text(const uint8_t *data, size_t size, size_t from, size_t to, const json_t *root,
                       uint8_t *out, size_t max)
{
    static char text[1 << 16];
    size_t n = json_dumpb(root, text, sizeof text, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!n || n > sizeof text || from + n + (size - to) > max) return 0;
    memmove(out + from + n, data + to, size - to);
    if (out != data) memcpy(out, data, from);
    memcpy(out + from, text, n);
    return from + n + (size - to);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    size_t from, to, n = 0;
    begin(seed);
    a_text(data, size, &from, &to);
    json_t *root = below(4) ? parse(data + from, to - from) : NULL;
    if (root) {
        for (unsigned i = 1 + below(4); i--;) change(&root, root);
        n = put_text(data, size, from, to, root, data, max_size);
        json_decref(root);
    }
    return n ? n : LLVMFuzzerMutate(data, size, max_size);
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t n_a, const uint8_t *b, size_t n_b, uint8_t *out,
                                 size_t max, unsigned seed)
{
    size_t from, to, b_from, b_to, n = 0;
    begin(seed);
    a_text(a, n_a, &from, &to);
    a_text(b, n_b, &b_from, &b_to);
    json_t *root = parse(a + from, to - from), *donor = parse(b + b_from, b_to - b_from);
    if (root && donor) {
        for (unsigned i = 1 + below(3); i--;) change(&root, donor);
        n = put_text(a, n_a, from, to, root, out, max);
    }
    json_decref(root);
    json_decref(donor);
    return n;
}
