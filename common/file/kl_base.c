/* kl_base.c - see kl_base.h. */
#include "kl_base.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char magic[] = "_logits_";
#define HEADER 20 /* bytes before the tokens */
#define RANGE 16  /* of logits that codes span */
#define CODES 65535

int32_t kl_first(int32_t n_ctx)
{
    return n_ctx / 2;
}

int32_t kl_scored(int32_t n_ctx)
{
    return n_ctx - 1 - n_ctx / 2;
}

size_t kl_row_bytes(int32_t n_vocab)
{
    return 8 + 2 * (((size_t)n_vocab + 1) / 2 * 2);
}

static int check_size(const struct kl_base *b, const char *path, struct err *e)
{
    const uint64_t tokens = (uint64_t)b->n_ctx * (uint64_t)b->n_window;
    const uint64_t rows = (uint64_t)kl_scored(b->n_ctx) * (uint64_t)b->n_window;
    uint64_t want;
    if (__builtin_mul_overflow(rows, (uint64_t)kl_row_bytes(b->n_vocab), &want) ||
        __builtin_add_overflow(want, HEADER + 4 * tokens, &want))
        return err_set(e, ERR_FORMAT, "%s: more bytes than 64 bits count (%d windows of %d)", path,
                       b->n_window, b->n_ctx);
    if (want == b->map.size) return 0;
    err_set(e, ERR_FORMAT,
            "%s: wrong length (expected %" PRIu64
            " bytes: %d windows of %d tokens, a vocabulary of %d; got %" PRIu64 ")",
            path, want, b->n_window, b->n_ctx, b->n_vocab, b->map.size);
    return b->map.size < want ? err_hint(e, "it is truncated: was the disk full when it was written?") : -1;
}

int kl_base_open(struct kl_base *b, const char *path, struct err *e)
{
    *b = (struct kl_base){0};
    if (io_map_open(&b->map, path, e)) return -1;
    io_map_keep(&b->map);
    int32_t head[3] = {0};
    if (b->map.size < HEADER || memcmp(b->map.data, magic, 8)) {
        err_set(e, ERR_FORMAT,
                "%s: no log-probabilities of a reference (expected the letters %s at its start)", path,
                magic);
        if (b->map.size) io_hint_file(b->map.data, (size_t)b->map.size, b->map.size, e);
        goto fail;
    }
    memcpy(head, b->map.data + 8, sizeof head);
    if (head[0] < 3 || head[0] > 1 << 30 || head[1] < 1 || head[1] > 1 << 28 || head[2] < 1) {
        err_set(
            e, ERR_FORMAT,
            "%s: sizes out of range (expected windows of 3 tokens or more, a vocabulary and windows of 1 or "
            "more, got %d, %d and %d)",
            path, head[0], head[1], head[2]);
        goto fail;
    }
    b->n_ctx = head[0], b->n_vocab = head[1], b->n_window = head[2];
    if (check_size(b, path, e)) goto fail;
    b->ids = (const int32_t *)(const void *)(b->map.data + HEADER);
    b->rows = b->map.data + HEADER + 4 * (size_t)b->n_ctx * (size_t)b->n_window;
    for (int64_t i = 0; i < (int64_t)b->n_ctx * b->n_window; i++)
        if (b->ids[i] < 0 || b->ids[i] >= b->n_vocab) {
            err_set(e, ERR_FORMAT,
                    "%s: token %" PRId64 ": id out of the vocabulary (expected 0 to %d, got %d)", path, i,
                    b->n_vocab - 1, b->ids[i]);
            goto fail;
        }
    return 0;
fail:
    kl_base_close(b);
    return -1;
}

void kl_base_close(struct kl_base *b)
{
    io_map_close(&b->map);
    *b = (struct kl_base){0};
}

void kl_row_encode(const float *logits, int32_t n_vocab, uint8_t *row)
{
    float top = logits[0], low = logits[0];
    double sum = 0;
    for (int32_t i = 1; i < n_vocab; i++) {
        top = logits[i] > top ? logits[i] : top;
        low = logits[i] < low ? logits[i] : low;
    }
    low = low > top - RANGE ? low : top - RANGE;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - (double)top);
    const float scale = (top - low) / CODES, inverse = scale > 0 ? 1 / scale : 0;
    const float least = (float)((double)low - (double)top - log(sum));
    memset(row, 0, kl_row_bytes(n_vocab));
    memcpy(row, &scale, 4);
    memcpy(row + 4, &least, 4);
    for (int32_t i = 0; i < n_vocab; i++) {
        const float code = logits[i] > low ? rintf(inverse * (logits[i] - low)) : 0;
        const uint16_t c = code > CODES ? CODES : (uint16_t)code;
        memcpy(row + 8 + 2 * (size_t)i, &c, 2);
    }
}

void kl_row_scale(const uint8_t *row, float *scale, float *least)
{
    memcpy(scale, row, 4);
    memcpy(least, row + 4, 4);
}

int kl_base_header(struct io_out *o, int32_t n_ctx, int32_t n_vocab, int32_t n_window, const int32_t *ids,
                   struct err *e)
{
    const int32_t head[3] = {n_ctx, n_vocab, n_window};
    return io_out_write(o, magic, 8, e) || io_out_write(o, head, sizeof head, e) ||
                   io_out_write(o, ids, (size_t)n_ctx * (size_t)n_window * sizeof *ids, e)
               ? -1
               : 0;
}
