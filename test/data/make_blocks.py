#!/usr/bin/env python3
"""Make blocks_*.bin: random blocks of every type that dflash.c decodes, and what they decode to.

The values are those of the gguf package (gguf.quants.dequantize), an independent implementation of the formats.
A file is: u32 blocks, the blocks, then float32 values. Needs: pip install gguf numpy. Run in this directory.
"""
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T
from gguf import quants

SCALES = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "IQ2_XXS": [0], "IQ2_XS": [0],
          "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [48], "MXFP4": []}
rng = np.random.default_rng(20)
for name, at in SCALES.items():
    t = T[name]
    n_elem, n_bytes = gguf.GGML_QUANT_SIZES[t]
    n = 1024 // n_elem if n_elem < 256 else 5
    raw = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    for o in at:
        f = rng.normal(0, 1, n).astype(np.float16)
        f[0], f[1], f[2] = 3e-6, -65504, -0.0  # subnormal, the largest, negative zero
        h = f.view(np.uint16)
        if name == "IQ1_M":  # the upper 4 bits of four u16, the lowest of d first
            for i in range(4):
                raw[:, o + 2 * i + 1] = (raw[:, o + 2 * i + 1] & 15) | ((h >> 4 * i & 15) << 4).astype(np.uint8)
        else:
            raw[:, o:o + 2] = h.view(np.uint8).reshape(n, 2)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(0, 251, n)
        raw[:4, 0] = 0, 1, 2, 250
    y = quants.dequantize(raw.reshape(1, -1), t).reshape(-1).astype("<f4")
    assert np.isfinite(y).all()
    with open(f"blocks_{name.lower()}.bin", "wb") as f:
        f.write(np.uint32(n).tobytes() + raw.tobytes() + y.tobytes())
