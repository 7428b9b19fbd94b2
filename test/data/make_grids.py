#!/ usr / bin / env python3
"""Make kernels/blocks/grid_sets.h: the grids of IQ1, IQ2 and IQ3 as sets.

A grid is a list of points of 8 values of 3 levels (or 4 of 8), in ascending order of the number whose digits of base 3
(or 8) are the levels, the first value's the lowest. So a grid is the set of these numbers, and a bit a number says it.
The sets are the format's constants; they are taken from the gguf package. Needs: pip install gguf numpy.
"""
import zlib

import gguf
import numpy as np
from gguf import quants

GRIDS = [("IQ2_XXS", "iq2_xxs"), ("IQ2_XS", "iq2_xs"), ("IQ2_S", "iq2_s"), ("IQ1_S", "iq1"), ("IQ3_XXS", "iq3_xxs"),
         ("IQ3_S", "iq3_s")]

out = ["/* grid_sets.h - the grids of IQ1, IQ2 and IQ3 as sets: bit n % 32 of word n / 32 is point n (grids.h). Made by",
       " * test/data/make_grids.py. */", "#ifdef __cplusplus", "#define GRID_SET static constexpr", "#else",
       "#define GRID_SET static const", "#endif", ""]
for kind, name in GRIDS:
    c = getattr(quants, kind)
    c.init_grid()
    levels = list(c.grid_map)
    base, values = len(levels), c.grid_shape[1]
    grid = np.array(c.grid).reshape(c.grid_shape)
    number = [sum(levels.index(v) * base**i for i, v in enumerate(point)) for point in grid]
    assert number == sorted(set(number)) and len(number) == c.grid_shape[0]
    words = [0] * ((base**values + 31) // 32)
    for n in number:
        words[n // 32] |= 1 << n % 32
    out.append(f"GRID_SET uint32_t set_{name}[{len(words)}] = {{ /* {len(number)} points */")
    for i in range(0, len(words), 8):
        out.append("    " + ", ".join(f"0x{w:08x}" for w in words[i:i + 8]) + ",")
    out += ["};", ""]
open("../../kernels/blocks/grid_sets.h", "w").write("\n".join(out[:-1]) + "\n")

#For test_blocks.c : every point at d = 1, scales and signs 0.
for kind, _ in GRIDS:
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    c = getattr(quants, kind)
    points, values = c.grid_shape
    each = 256 // values
    raw = np.zeros((points // each, size), np.uint8)
    raw[:, 1] = 0x3c
    for p in range(points):
        b, e, high = raw[p // each], p % each, p >> 8
        if kind == "IQ2_XXS":
            b[2 + 8 * (e // 4) + e % 4] = p
        elif kind == "IQ2_XS":
            b[2 + 2 * e], b[3 + 2 * e] = p & 255, high
        else:
            b[2 + e] = p & 255
        if kind == "IQ2_S":
            b[66 + e // 4] |= high << 2 * (e % 4)
        elif kind == "IQ3_S":
            b[66 + e // 8] |= high << e % 8
        elif kind == "IQ1_S":
            v = high << 3 * (e % 4)
            b[34 + 2 * (e // 4)] |= v & 255
            b[35 + 2 * (e // 4)] |= v >> 8
    y = quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[kind]).astype("<f4")
    print(f"{{KN_{kind}, 0x{zlib.crc32(y.tobytes()):08x}}},")
