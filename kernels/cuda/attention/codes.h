/* attention/codes.h - how the keys of a quantised cache are cut, for the kernel (codes.cuh) and what plans
 * it. */
#ifndef DFLASH_CUDA_ATTENTION_CODES_H
#define DFLASH_CUDA_ATTENTION_CODES_H

#define ATTN_CODES_LEAF(D) ((D) <= 256 ? 32 : 16) /* keys that a warp has at once */
#define ATTN_CODES_GROUPS(D) ((D) <= 256 ? 1 : 2) /* of columns, each of warps of its own */
#define ATTN_CODES_NEAR 4096 /* positions below it have nodes of 256, as windows have; others of 1,024 */
#define ATTN_CODES_SMALL (ATTN_CODES_NEAR / 256) /* nodes of 256, where there are others, too */
/* The node of a position, and the first position of a node. */
#define ATTN_CODES_NODE(window, pos)                                                                         \
    ((window) || (pos) < ATTN_CODES_NEAR ? (pos) / 256 : ATTN_CODES_SMALL + ((pos)-ATTN_CODES_NEAR) / 1024)
#define ATTN_CODES_START(window, node)                                                                       \
    ((window) || (node) <= ATTN_CODES_SMALL ? (node)*256 : ATTN_CODES_NEAR + ((node)-ATTN_CODES_SMALL) * 1024)
/* Bytes of a row in a cache, of so many that its heads have. */
#define ATTN_CODES_ROW(bytes) (((bytes) + 15) / 16 * 16)
/* Bytes from a key to the next of a plane in shared memory: on other banks. */
#define ATTN_CODES_PITCH(bytes) ((bytes) % 32 || (bytes) == 0 ? (bytes) : (bytes) + 16)
/* Rows in shared memory: 2^ATTN_CODES_RUN of them as they lie in the cache, if they are whole, then some
 * bytes of nothing, so that keys g, and values 2 c and 2 c + 1, are on other banks than their neighbours. */
#define ATTN_CODES_RUN(row, whole) ((row) % 32 ? 5 : !(whole) ? 0 : (row) % 64 ? 2 : (row) % 128 ? 1 : 0)
#define ATTN_CODES_PAD(row, whole, value) ((row) % 32 ? 0 : (whole) && (row) % 128 && (value) ? 32 : 16)

#endif
