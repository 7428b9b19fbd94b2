#!/usr/bin/env python3
"""Make imatrix_*: importance matrices byte by byte as the ecosystem's tools write them, by nothing but struct.

Both forms (docs/imatrix.md) of one matrix: two products, the second of three experts of which one saw no row, and a third whose
tensor the trained pair has. imatrix.gguf is what a writer of today makes; imatrix_stats.gguf what one makes that adds sums,
statistics (a NaN among them) and keys; imatrix_flat.gguf what a merge of the binary form gives: experts in one row, one count;
imatrix.dat is the binary form, imatrix_first.dat that of the first versions, which ends with the last entry.
Run in this directory.
"""
import struct

CHUNK = 512
SETS = ["one", "two"]
ENTRIES = [  # name, columns, rows a matrix, sums of squares
    ("blk.0.attn_output.weight", 5, [700], [0, 700, 1400, 175, 87.5]),
    ("blk.0.ffn_down.weight", 512, [512], [(i * 37 % 101 + 1) * 64.0 for i in range(512)]),
    ("blk.1.ffn_gate_exps.weight", 4, [700, 0, 8], [700, 0, 350, 1400] + [0] * 4 + [1, 2, 3, 4]),
]


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key_text(k, v):
    return text(k) + struct.pack("<I", 8) + text(v)


def key_texts(k, v):
    return text(k) + struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))


def key_u32(k, v):
    return text(k) + struct.pack("<II", 4, v)


def pad(b):
    return b + bytes(-len(b) % 32)


def gguf(name, tensors, more_keys=()):
    keys = [key_text("general.type", "imatrix"), key_texts("imatrix.datasets", SETS),
            key_u32("imatrix.chunk_count", 2), key_u32("imatrix.chunk_size", CHUNK), *more_keys]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for n, shape, values in tensors:
        while len(shape) > 1 and shape[-1] == 1:  # ggml_n_dims
            shape = shape[:-1]
        head += text(n) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, len(data))
        data = pad(data + struct.pack(f"<{len(values)}f", *values))
    open(name, "wb").write(pad(head) + data)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def dat(name, end):
    out = struct.pack("<i", len(ENTRIES))
    for n, width, counts, sums in ENTRIES:
        calls = (max(counts) + CHUNK - 1) // CHUNK
        out += struct.pack("<i", len(n)) + n.encode() + struct.pack("<ii", calls, len(sums))
        for i, v in enumerate(sums):
            count = counts[i // width]
            out += struct.pack("<f", f32(v / count) * calls if count else calls)
    if end:
        out += struct.pack("<ii", 2, len(SETS[-1])) + SETS[-1].encode()
    open(name, "wb").write(out)


plain, stats, flat = [], [], []
for n, width, counts, sums in ENTRIES:
    pair = [(n + ".in_sum2", [width, len(counts)], sums), (n + ".counts", [1, len(counts)], counts)]
    plain += pair
    stats += pair + [(n + ".in_sum", [width, len(counts)], [-0.5 * v for v in sums]),
                     (n + ".stats", [12], [1, -2, 3, 4, 5, 6, 7, 8, float("nan"), 10, 11, 12])]
    calls = (max(counts) + CHUNK - 1) // CHUNK
    mean = [v / counts[i // width] if counts[i // width] else 1 for i, v in enumerate(sums)]
    flat += [(n + ".in_sum2", [len(sums), 1], [f32(v) * calls * CHUNK for v in mean]), (n + ".counts", [1, 1], [calls * CHUNK])]
gguf("imatrix.gguf", plain)
gguf("imatrix_stats.gguf", stats, [key_u32("imatrix.n_layer_nextn", 1), key_texts("imatrix.stats_schema", ["sum_sq", "mean"])])
gguf("imatrix_flat.gguf", flat)
dat("imatrix.dat", True)
dat("imatrix_first.dat", False)
