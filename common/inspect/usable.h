/* usable.h - can a file that is sound be run here: the types of its tensors. */
#ifndef DFLASH_USABLE_H
#define DFLASH_USABLE_H

#include <stdint.h>
#include "../describe/desc.h"
#include "../file/gguf.h"

/* Tensors that a run would refuse to load: matrices of types that cannot be multiplied, vectors of types that
 * cannot be decoded. Blocks that a run leaves out do not count. *n: how many; the first of them, or NULL;
 * text: their types, "IQ3_S (12 tensors), ...". */
const struct gguf_tensor *usable_types(const struct gguf *g, const struct desc *d, int64_t *n, char *text,
                                       size_t size);

#endif
