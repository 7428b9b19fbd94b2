/* usable.h - what a file that is sound is good for: the types of its tensors. */
#ifndef DFLASH_USABLE_H
#define DFLASH_USABLE_H

#include <stdint.h>
#include "../describe/desc.h"
#include "../file/gguf.h"

/* kn_cpu_multiplies, kn_cuda_multiplies, or usable_any: one of them. */
typedef bool (*usable_fn)(uint32_t type);
bool usable_any(uint32_t type);
/* Tensors that a run would refuse to load where matrices of these types are multiplied: other matrices, and
 * vectors of types that cannot be decoded. Blocks that a run leaves out do not count. *n: how many; the first
 * of them, or NULL; text: their types, "IQ3_S (12 tensors), ...". */
const struct gguf_tensor *usable_types(const struct gguf *g, const struct desc *d, usable_fn multiplies,
                                       int64_t *n, char *text, size_t size);

#endif
