/* fuzz_tokenize.c - any bytes through encoder and decoder of a tiny vocabulary. The first byte picks the
 * kind of vocabulary, the pre-tokenizer, the normaliser and which tokens are recognised; the second the cuts.
 * Without normalisation the bytes come back; with NFC the result is a fixed point; in SentencePiece style
 * U+2581 comes back as a space; and the ids never depend on the cuts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/token/tokenizer_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_EXTRA 14
static const char *const extra[N_EXTRA] = {
    "aa",      "aaaa", "ab",        "\xc4\xa0\xc4\xa0", "\xc4\xa0\x61", "\xc3\x8c\xc4\xa3",
    "'s",      "--",   "e\xc3\x8c", "\xc4\x8a\xc4\x8a", "<|e|>",        "<|",
    "<|e|>\n", "<x>"};
static const int32_t extra_type[N_EXTRA] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, TOK_CONTROL, TOK_CONTROL, TOK_USER_DEFINED, TOK_USER_DEFINED};
static const char *const merges[] = {"a a",        "\xc4\xa0 \xc4\xa0", "aa aa", "\xc4\xa0 a",
                                     "a b",        "\xc3\x8c \xc4\xa3", "' s",   "- -",
                                     "e \xc3\x8c", "\xc4\x8a \xc4\x8a"};
static struct tokenizer *model[8]; /* pre-tokenizer x normaliser */

static void build(void)
{
    static const char *const names[] = {"gpt-2", "qwen2", "qwen35", "llama-bpe"};
    static char text[256][4];
    struct gguf_str token[256 + N_EXTRA], merge[sizeof merges / sizeof *merges];
    int32_t type[256 + N_EXTRA];
    int gap = 0;
    for (int b = 0; b < 256; b++) {
        bool own = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        int c = own ? b : 0x100 + gap++;
        if (c < 0x80)
            snprintf(text[b], 4, "%c", c);
        else
            snprintf(text[b], 4, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
        token[b] = (struct gguf_str){text[b], strlen(text[b])};
        type[b] = TOK_NORMAL;
    }
    for (int i = 0; i < N_EXTRA; i++) {
        token[256 + i] = (struct gguf_str){extra[i], strlen(extra[i])};
        type[256 + i] = extra_type[i];
    }
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        merge[i] = (struct gguf_str){merges[i], strlen(merges[i])};
    for (int i = 0; i < 8; i++) {
        struct err e = {0};
        struct tok_spec s = {.name = "fuzz",
                             .pre = tok_pre_by_name((struct gguf_str){names[i & 3], strlen(names[i & 3])}),
                             .nfc = i & 4,
                             .bos = -1,
                             .token = token,
                             .type = type,
                             .n_vocab = 256 + N_EXTRA,
                             .merge = merge,
                             .n_merges = sizeof merges / sizeof *merges};
        s.ignore_merges = s.pre->ignore_merges;
        if (tok_build(&model[i], &s, &e)) {
            fprintf(stderr, "%s\n", e.msg);
            abort();
        }
    }
}

/* SentencePiece style: merges by rank, then by score with and without a space prefix. Some characters are no
 * tokens. */
#define N_SPM 18
static const char *const spm_text[N_SPM] = {"a",
                                            "b",
                                            "\xe2\x96\x81",
                                            "\n",
                                            "\xc3\xa9",
                                            "-",
                                            "aa",
                                            "ab",
                                            "\xe2\x96\x81"
                                            "a",
                                            "\xe2\x96\x81\xe2\x96\x81",
                                            "\n\n",
                                            "\xc3\xa9"
                                            "a",
                                            "--",
                                            "aaaa",
                                            "aab",
                                            "<|e|>",
                                            "<|",
                                            "<|x>"};
static const float spm_score[N_SPM] = {-20, -21, -22, -23, -24, -25, -1, -2, -3, -4, -4, -5, -6, -7, -2};
static const char *const spm_merges[] = {
    "a a",   "\xe2\x96\x81 a", "a b", "\xe2\x96\x81 \xe2\x96\x81", "\n \n", "\xc3\xa9 a", "- -",
    "aa aa", "aa b",           "a ab"};
static struct tokenizer *spm[3];

static void build_spm(void)
{
    static char byte[256][8];
    struct gguf_str token[256 + N_SPM], merge[sizeof spm_merges / sizeof *spm_merges];
    int32_t type[256 + N_SPM];
    float score[256 + N_SPM] = {0};
    for (int i = 0; i < 256 + N_SPM; i++) {
        if (i < 256) snprintf(byte[i], 8, "<0x%02X>", (unsigned)i);
        const char *s = i < 256 ? byte[i] : spm_text[i - 256];
        token[i] = (struct gguf_str){s, strlen(s)};
        type[i] = i < 256 ? TOK_BYTE : i < 256 + 15 ? TOK_NORMAL : TOK_CONTROL;
        if (i >= 256) score[i] = spm_score[i - 256];
    }
    for (size_t i = 0; i < sizeof spm_merges / sizeof *spm_merges; i++)
        merge[i] = (struct gguf_str){spm_merges[i], strlen(spm_merges[i])};
    for (int i = 0; i < 3; i++) {
        struct err e = {0};
        if (i == 0) type[256 + 17] = TOK_USER_DEFINED;
        struct tok_spec s = {.name = "fuzz",
                             .kind = i ? TOK_SPM : TOK_GEMMA,
                             .space_prefix = i == 2,
                             .bos = -1,
                             .token = token,
                             .type = type,
                             .n_vocab = 256 + N_SPM,
                             .merge_key = "merges"};
        if (i) {
            s.score = score;
        } else {
            s.merge = merge;
            s.n_merges = sizeof merge / sizeof *merge;
        }
        if (tok_build(&spm[i], &s, &e)) {
            fprintf(stderr, "%s\n", e.msg);
            abort();
        }
        type[256 + 17] = TOK_CONTROL;
    }
}

static int take(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    return tok_buf_add(ctx, ids, n * sizeof *ids, e);
}

static int take_bytes(void *ctx, const void *p, size_t n, struct err *e)
{
    return tok_buf_add(ctx, p, n, e);
}

static void encode(const struct tokenizer *t, enum tok_special special, const uint8_t *p, size_t n,
                   size_t cut, struct tok_buf *out)
{
    struct tok_encoder *x;
    if (tok_encoder_new(&x, t, special, true, NULL)) abort();
    for (size_t i = 0; i < n; i += cut)
        if (tok_encode(x, p + i, n - i < cut ? n - i : cut, false, take, out, NULL)) abort();
    if (tok_encode(x, NULL, 0, true, take, out, NULL)) abort();
    tok_encoder_free(x);
}

static void decode(const struct tokenizer *t, const struct tok_buf *ids, struct tok_buf *out)
{
    struct tok_decoder *x;
    if (tok_decoder_new(&x, t, true, NULL)) abort();
    if (tok_decode(x, (const int32_t *)(const void *)ids->p, ids->n / 4, true, take_bytes, out, NULL))
        abort();
    tok_decoder_free(x);
}

static void same(const struct tok_buf *a, const void *p, size_t n)
{
    if (a->n != n || (n && memcmp(a->p, p, n))) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model[0]) {
        build();
        build_spm();
    }
    if (size < 2) return 0;
    const int kind = data[0] >> 4 & 3;
    const struct tokenizer *t = kind ? spm[kind - 1] : model[data[0] & 7];
    enum tok_special special = data[0] & 64  ? TOK_SPECIAL_CHAT
                               : data[0] & 8 ? TOK_SPECIAL_ALL
                                             : TOK_SPECIAL_NOT;
    size_t cut = 1 + data[1] % 16, n = size - 2;
    struct tok_buf whole = {0}, pieces = {0}, text = {0}, again = {0};
    encode(t, special, data + 2, n, n + 1, &whole);
    encode(t, special, data + 2, n, cut, &pieces);
    same(&pieces, whole.p, whole.n);
    decode(t, &whole, &text);
    if (kind) {
        struct tok_buf want = {0};
        if (tok_buf_add(&want, data + 2, n, NULL)) abort();
        want.n = n ? tok_spm_spaces((const char *)data + 2, n, want.p) : 0;
        /* special tokens may each add a space prefix */
        if (!t->space_prefix || special != TOK_SPECIAL_ALL) same(&text, want.p, want.n);
        mem_free(want.p);
    } else if (t->nfc) {
        encode(t, special, text.p, text.n, text.n + 1, &again);
        same(&again, whole.p, whole.n);
    } else {
        same(&text, data + 2, n);
    }
    mem_free(whole.p);
    mem_free(pieces.p);
    mem_free(text.p);
    mem_free(again.p);
    return 0;
}
