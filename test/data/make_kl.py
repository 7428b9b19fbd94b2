#!/usr/bin/env python3
"""make_kl.py - a reference's log-probabilities as llama-perplexity writes them, logits of another model, and what a
comparison of the two must give.

usage: make_kl.py       (numpy; from the folder that the files are to be in)

kl_base.bin: three windows of 7 tokens, a vocabulary of 11 (odd: a code of padding), scored are positions 3 to 5. One row has
equal logits (scale 0), one a logit more than 16 below the largest. kl_logits.f32: float32 [9, 11] of the reference, then
[9, 11] of the other model. kl_expect.txt: NAME VALUE, computed in float64 over what is in the files, by the formulas of
docs/perplexity.md. The layout and the codes follow the description there, not a program."""
import struct
import numpy as np

N_CTX, N_VOCAB, N_WINDOW = 7, 11, 3
FIRST = N_CTX // 2
SCORED = N_CTX - 1 - FIRST


def encode(logits):
    top, low = logits.max(), logits.min()
    low = max(low, np.float32(top - np.float32(16)))
    lse = np.log(np.exp((logits - top).astype(np.float64)).sum())
    scale = np.float32((top - low) / np.float32(65535))
    least = np.float32(np.float64(low) - np.float64(top) - lse)
    codes = np.zeros(N_VOCAB + N_VOCAB % 2, np.uint16)
    if scale > 0:
        inverse = np.float32(1) / scale
        for i, x in enumerate(logits):
            codes[i] = np.uint16(np.rint(np.float32(inverse * np.float32(x - low)))) if x > low else 0
    return struct.pack("<ff", scale, least) + codes.tobytes()


def decode(row):
    scale, least = struct.unpack_from("<ff", row)
    return scale * np.frombuffer(row, np.uint16, N_VOCAB, 8).astype(np.float64) + least


def main():
    rng = np.random.default_rng(7)
    ids = rng.integers(0, N_VOCAB, (N_WINDOW, N_CTX)).astype(np.int32)
    rows = N_WINDOW * SCORED
    base = rng.normal(0, 3, (rows, N_VOCAB)).astype(np.float32)
    base[2] = 1.25
    base[4, 6] = base[4].max() - 21
    other = (base + rng.normal(0, 0.7, base.shape)).astype(np.float32)
    coded = [encode(r) for r in base]
    with open("kl_base.bin", "wb") as f:
        f.write(b"_logits_" + struct.pack("<iii", N_CTX, N_VOCAB, N_WINDOW) + ids.tobytes() + b"".join(coded))
    with open("kl_logits.f32", "wb") as f:
        f.write(base.tobytes() + other.tobytes())

    nll, base_nll, kl, diff, same = [], [], [], [], []
    for r in range(rows):
        token = ids[r // SCORED, FIRST + r % SCORED + 1]
        x = other[r].astype(np.float64)
        log_q = x - x.max() - np.log(np.exp(x - x.max()).sum())
        log_p = decode(coded[r])
        seen = log_p > -16
        nll.append(-log_q[token])
        base_nll.append(-log_p[token])
        kl.append((np.exp(log_p[seen]) * (log_p[seen] - log_q[seen])).sum())
        diff.append(np.exp(log_q[token]) - np.exp(log_p[token]))
        same.append(float(log_p.argmax() == log_q.argmax()))

    def mean(v):
        v = np.array(v)
        return v.mean(), np.sqrt(((v**2).mean() - v.mean() ** 2) / (len(v) - 1))

    out = {}
    out["nll"], out["nll_error"] = mean(nll)
    out["ppl"], out["ppl_error"] = np.exp(out["nll"]), out["nll_error"] * np.exp(out["nll"])
    b, b_error = mean(base_nll)
    out["base_ppl"], out["base_ppl_error"] = np.exp(b), b_error * np.exp(b)
    out["ln_ratio"], out["ln_ratio_error"] = mean(np.array(nll) - np.array(base_nll))
    out["kl"], out["kl_error"] = mean(kl)
    out["kl_median"], out["kl_90"], out["kl_max"] = np.median(kl), np.quantile(kl, 0.9), max(kl)
    square, square_error = mean(np.array(diff) ** 2)
    out["p_rms"], out["p_rms_error"] = np.sqrt(square), square_error / (2 * np.sqrt(square))
    out["same_top"], out["same_top_error"] = mean(same)
    with open("kl_expect.txt", "w") as f:
        for k, v in out.items():
            print(k, f"{v:.12g}", file=f)


main()
