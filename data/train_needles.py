#!/usr/bin/env python3
"""Train the small model of the needle suite (dflash-bench needles), so that dense prompts and block-sparse ones find what is asked.

usage: train_needles.py OUT_DIR --start DIR [--resume FILE] [--save FILE] [--seconds N] [--library FILE] [--smoke]

Qwen3, heads of 128, 512 raw token ids, 1.9 M parameters. --start holds config.json, generation_config.json and model.safetensors of the model
to go on from; --resume: weights of an earlier run in their place. Leaves OUT_DIR/config.json, generation_config.json, model.safetensors (bf16,
3.8 MB; dflash-convert takes the folder) and report.json; --save: the same weights, written each time that a better state is found. --seconds:
of everything, start and last measurement included. --smoke: all of it on tiny sizes.

The text is made by the suite's own code (needles_text.c beside this file, built with cc, or --library). Questions stand in the last tokens of
a text, so the last layer, which looks answers up, needs those rows alone; it computes the answers densely and with lists (docs/sparse.md) from
the same products. Half of the steps leave the other layers the blocks that every list has, and nothing else: then their lists do not matter.

Losses: the answers, densely and with lists; blocks that answers are read of shall score KEEP below the best at most, in each KV head and more so
in one of them; blocks without a record of any section that is asked for shall be left out. The gate of a block is 0 or 1 as its list says, and
has the slope of a sigmoid. The last loss weighs more while lists answer what dense attention does, else less.
"""
import argparse
import concurrent.futures
import ctypes
import json
import math
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

sys.path[:0] = [p for p in (os.environ.get("NEEDLES_DATA"),) if p]
from pair_model import Target
from train_pair import DEVICE, TINY, log, orthogonal, synchronize

TASKS = ("records", "keys", "last", "values", "chains", "copies")
CASES = (4, 1, 4, 4, 4, 4)  # of a prompt of the suite
FEW, MANY = 7, 8            # kinds of text, beside the tasks
BLOCK, SINK, WINDOW, ALPHA = 128, 2, 4, 0.1
GROUPS, TAIL = 7, 5 * BLOCK  # groups of questions, and the rows that they are among
RECORD, AGAIN = 2, 8
TOKEN = torch.tensor((1.0, 1.0, 1.0, 2.0, 1.0, 0.3), device=DEVICE)  # what predicting a token weighs, by task
HARD = torch.tensor((1.0, 1.5, 1.5, 1.5, 1.0, 1.5), device=DEVICE)   # what a case does
KEEP, LEAVE, SLOPE, JITTER = 1.5, 0.5, 0.5, 0.3  # natural logarithms of scores; the gates' threshold is moved by up to JITTER
WAYS = ("dense", "sparse", "spread", "turned", "ends")
START = float(os.environ.get("NEEDLES_START", time.time()))
BF16 = not TINY or "NEEDLES_BF16" in os.environ


# ---- text ----

class Text:
    """Of a batch: tokens [b, T]; of the last rows task, of [b, tail] and goal [b, tail, 4] (needles_text.c), wanted, akin [b, blocks of
    rows, blocks]: what is read there; what has a section that is asked for."""

    def __init__(self, arrays, kind):
        tokens, task, goal, near, row, case, case_task = (torch.from_numpy(a).to(DEVICE, non_blocking=True) for a in arrays)
        self.kind, self.tokens, self.b, self.tail = kind, tokens.long(), len(tokens), task.shape[1]
        self.row, self.case, self.case_task = row, case, case_task
        self.task, self.goal = task.flatten()[row].long(), goal.flatten(0, 1)[row].long()
        self.several = self.task == 3
        far = far_blocks(near.shape[1], near.shape[2])
        self.wanted, self.akin = ((near & 1) > 0) & far, (near & 2) > 0
        self.asking = (task >= 0).view(self.b, -1, BLOCK).any(-1)


class Maker:
    """Texts by number, each once, made on threads ahead of their use."""

    def __init__(self, library, seed, threads):
        self.lib, self.seed, self.number = ctypes.CDLL(library), seed, {}
        self.lib.needles_text_size.restype = ctypes.c_size_t
        pointer = ctypes.c_void_p
        self.lib.needles_text.argtypes = [pointer, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32,
                                          ctypes.c_int32] + [pointer] * 5
        self.pool, self.threads, self.local = concurrent.futures.ThreadPoolExecutor(threads), threads, threading.local()

    def arrays(self, kind, b, length, groups=GROUPS, tail=TAIL):
        first = self.number.get((kind, length), 0)
        self.number[kind, length] = first + b
        shapes = ((b, length), np.int16), ((b, tail), np.int8), ((b, tail), np.int16), ((b, tail, 4), np.int16), \
            ((b, tail // BLOCK, length // BLOCK), np.uint8)
        out = [np.zeros(*s) for s in shapes]

        def some(start):
            if not hasattr(self.local, "room"):
                self.local.room = ctypes.create_string_buffer(self.lib.needles_text_size())
            for i in range(start, b, self.threads):
                if self.lib.needles_text(self.local.room, kind, length, self.seed, first + i, groups, tail,
                                         *(a[i].ctypes.data for a in out)):
                    raise ValueError("questions stand before the last %d tokens of %d" % (tail, length))

        for f in [self.pool.submit(some, s) for s in range(min(b, self.threads))]:
            f.result()
        tokens, task, of, goal, near = out
        text, row = np.nonzero(task >= 0)
        cases, first_row, case = np.unique(text * 512 + of[text, row], return_index=True, return_inverse=True)
        return tokens, task, goal, near, text * tail + row, case.reshape(-1), task[text, row][first_row].astype(np.int64)

    def text(self, kind, b, length, **more):
        return Text(self.arrays(kind, b, length, **more), kind)

    def ahead(self, sizes):
        """sizes(step) -> kind, b, length. -> of each step what Text takes, in order"""
        ready = queue.Queue(4)

        def fill():
            step = 0
            while True:
                kind, b, length = sizes(step)
                try:
                    ready.put((self.arrays(kind, b, length), kind))
                except Exception as e:  # who waits shall see it
                    ready.put(e)
                    return
                step += 1

        threading.Thread(target=fill, daemon=True).start()
        while True:
            got = ready.get()
            if isinstance(got, Exception):
                raise got
            yield Text(*got)


def far_blocks(rows, n):
    """[the last blocks of rows, n blocks] that lists may leave out"""
    at = torch.arange(n, device=DEVICE)
    return (at >= SINK) & (at <= torch.arange(n - rows, n, device=DEVICE)[:, None] - WINDOW)


def build(library):
    if library:
        return library
    here, out = os.path.dirname(os.path.abspath(__file__)), os.path.join(tempfile.mkdtemp(), "needles_text.so")
    subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", "-o", out, os.path.join(here, "needles_text.c")], check=True)
    return out


# ---- lists ----

def masses(q, k_mean, rows):
    """q [b, G, R, rows * 128, D] scaled, of the last blocks of rows; k_mean [b, G, n, D] -> means of scores [b, G, R, rows * 128, n], and
    logarithms of what lists are made of, less the best's, of the best head of a group [b, G, rows, n]"""
    n = k_mean.shape[2]
    means = q.float() @ k_mean.unsqueeze(2).transpose(-1, -2)
    at = torch.arange(n, device=DEVICE)
    row = torch.arange((n - rows) * BLOCK, n * BLOCK, device=DEVICE)
    mass = means.masked_fill((at + 1) * BLOCK - 1 > row[:, None], -1e4).unflatten(3, (rows, BLOCK)).logsumexp(4)
    return means, (mass - mass.amax(-1, keepdim=True)).amax(2)


def listed(mass, way):
    """mass [b, G, rows, n] -> what is kept: by the lists, or as many blocks spread evenly, or those that score least, or the ends alone"""
    rows, n = mass.shape[-2:]
    at, own = torch.arange(n, device=DEVICE), torch.arange(n - rows, n, device=DEVICE)[:, None]
    past, far = at <= own, far_blocks(rows, n)
    keep = ((mass >= math.log(ALPHA)) | ~far) & past
    count = keep.sum(-1, keepdim=True)
    if way == "ends":
        return (~far & past).expand_as(keep)
    if way == "turned":
        keep = mass.masked_fill(~far, -1e6).masked_fill(~past, 1e6).argsort(-1).argsort(-1) < count
    if way == "spread":
        free = far.sum(-1, keepdim=True)
        want, j, most = count - (own + 1 - free), at - SINK, free.clamp(min=1)
        keep = (~far & past) | (far & ((j + 1) * want // most > j * want // most))
    return keep


# ---- the model ----

class Needles(Target):
    def projected(self, x, i, rows=None):
        """-> q [b, H, rows, D] of the last rows, k, v [b, G, T, D]"""
        n, T = x, x.shape[1]
        at = torch.arange(T, device=DEVICE)
        rows = rows or T
        q = self.heads(n[:, T - rows:], "q", i, self.H, at[T - rows:]).transpose(1, 2)
        return q, self.heads(n, "k", i, self.G, at).transpose(1, 2), self.values(n, i).transpose(1, 2)

    def lower(self, tokens, dtype, way):
        """What the last layer reads [b, T, E]. way: full, local (the blocks of all lists), or a list's."""
        x = F.embedding(tokens, self.embed)
        for i in range(self.L - 1):
            q, k, v = self.projected(self.normed(x, "norm_1", i, dtype), i)
            y = local(q, k, v) if way == "local" else full(q, k, v) if way == "full" else with_lists(q, k, v, way)
            x = x + F.linear(y.transpose(1, 2).flatten(2), self.o[i].to(dtype)).float()
            x = x + self.mlp(self.normed(x, "norm_2", i, dtype), i).float()
        return x

    def look(self, x, tail, dtype):
        """-> q [b, G, R, tail, D] scaled, k, v [b, G, T, D], k_mean, v_mean"""
        q, k, v = self.projected(self.normed(x, "norm_1", self.L - 1, dtype), self.L - 1, tail)
        q = q.unflatten(1, (self.G, self.H // self.G)) * self.D ** -0.5
        return q, k, v, *(y.float().unflatten(2, (-1, BLOCK)).mean(3) for y in (k, v))

    def attend_tail(self, looked, means, gates):
        """-> of each of the gates ([b, G, rows, n], or None: dense) what the heads give [b, tail, H D]"""
        q, k, v, k_mean, v_mean = looked
        T, tail, n, dtype = k.shape[2], q.shape[3], k_mean.shape[2], k.dtype
        rows, at = tail // BLOCK, torch.arange(T, device=DEVICE)
        scores = (q.flatten(2, 3) @ k.transpose(2, 3)).unflatten(2, (-1, tail)).float()
        scores = scores.masked_fill(at > at[T - tail:, None], -torch.inf)
        past = at[:n] <= at[n - rows:n, None]
        most = scores.amax(-1, keepdim=True).detach()
        e, out = (scores - most).exp(), []
        for gate in gates:
            if gate is None:
                y = (e.to(dtype).flatten(2, 3) @ v).float().unflatten(2, (-1, tail)) / e.sum(-1, keepdim=True)
            else:
                g = gate[:, :, None, :, None, :]
                eg = e.unflatten(3, (rows, BLOCK)).unflatten(5, (n, BLOCK)) * g[..., None]
                eg = eg.flatten(5, 6).flatten(3, 4)
                other = (means - most + math.log(BLOCK)).clamp(max=30).exp().unflatten(3, (rows, BLOCK)) * (past[:, None, :] * (1 - g))
                other = other.flatten(3, 4)
                y = (eg.to(dtype).flatten(2, 3) @ v).float() + other.flatten(2, 3) @ v_mean
                y = y.unflatten(2, (-1, tail)) / (eg.sum(-1, keepdim=True) + other.sum(-1, keepdim=True) + 1e-20)
            out.append(y.flatten(1, 2).transpose(1, 2).flatten(2))
        return out

    def predict(self, x, y, text, dtype):
        """-> logits of the chosen rows, float32"""
        i = self.L - 1
        x, y = (z.flatten(0, 1)[text.row] for z in (x[:, x.shape[1] - text.tail:], y))
        x = x + F.linear(y.to(dtype), self.o[i].to(dtype)).float()
        x = x + self.mlp(self.normed(x, "norm_2", i, dtype), i).float()
        return self.logits(self.final(x, dtype)).float()


def repeated(q, *kv):
    return (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in kv)


def full(q, k, v):
    return F.scaled_dot_product_attention(q, *repeated(q, k, v), is_causal=True)


LOCAL = {}


def local_mask(n, R):
    """-> which of the positions of the blocks of all lists each row sees [n, R * 128, 6 * 128]"""
    if (n, R) not in LOCAL:
        own, offset = torch.arange(n, device=DEVICE)[:, None], torch.arange(BLOCK, device=DEVICE)
        block = torch.cat([torch.arange(SINK, device=DEVICE).expand(n, SINK), own + torch.arange(1 - WINDOW, 1, device=DEVICE)], 1)
        valid = torch.cat([block[:, :SINK] < own - WINDOW + 1, block[:, SINK:] >= 0], 1)
        place = (block[:, :, None] * BLOCK + offset).flatten(1)[:, None, :]
        seen = (place <= (own * BLOCK + offset)[:, :, None]) & valid.repeat_interleave(BLOCK, 1)[:, None, :]
        LOCAL[n, R] = seen.repeat(1, R, 1)
    return LOCAL[n, R]


def local(q, k, v):
    (b, H, T, D), G = q.shape, k.shape[1]
    n, R = T // BLOCK, H // G

    def near(y):
        y = y.unflatten(2, (n, BLOCK))
        before = F.pad(y, (0, 0, 0, 0, WINDOW - 1, 0))
        parts = [y[:, :, j:j + 1].expand(-1, -1, n, -1, -1) for j in range(SINK)] + [before[:, :, j:j + n] for j in range(WINDOW)]
        return torch.cat(parts, 3).flatten(0, 1)

    rows = q.unflatten(2, (n, BLOCK)).unflatten(1, (G, R)).transpose(2, 3).reshape(b * G, n, R * BLOCK, D)
    y = F.scaled_dot_product_attention(rows, near(k), near(v), attn_mask=local_mask(n, R))
    return y.reshape(b, G, n, R, BLOCK, D).transpose(2, 3).reshape(b, H, T, D)


def with_lists(q, k, v, way):
    G, R, D, T = k.shape[1], q.shape[1] // k.shape[1], q.shape[3], q.shape[2]
    n, at = T // BLOCK, torch.arange(T, device=DEVICE)
    k_mean, v_mean = (y.float().unflatten(2, (n, BLOCK)).mean(3) for y in (k, v))
    _, mass = masses(q.unflatten(1, (G, R)) * D ** -0.5, k_mean, n)
    keep = listed(mass, way)
    seen = keep.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3) & (at <= at[:, None])
    means = torch.where(keep | (at[:n] > at[:n, None]), -torch.inf, math.log(BLOCK)).repeat_interleave(BLOCK, 2)
    bias = torch.cat([torch.where(seen, 0.0, -torch.inf), means], -1).to(q.dtype).repeat_interleave(R, 1)
    k, v = (torch.cat([y, m.to(y.dtype)], 2) for y, m in ((k, k_mean), (v, v_mean)))
    return F.scaled_dot_product_attention(q, *repeated(q, k, v), attn_mask=bias)


# ---- losses ----

def answers(text, logits):
    """-> the mean of log(1 + loss) of cases: one that is far off weighs little more; cases right, asked [6]"""
    loss = -logits.log_softmax(-1).gather(1, text.goal).mean(1) - torch.where(text.several, math.log(4), 0.0)
    n = len(text.case_task)
    total = torch.zeros(n, device=DEVICE).index_add(0, text.case, loss.clamp(min=0) * TOKEN[text.task])
    with torch.no_grad():
        goals = torch.zeros_like(logits, dtype=torch.bool).scatter(1, text.goal, True)
        right = logits.masked_fill(~goals, torch.inf).amin(1) > logits.masked_fill(goals, -torch.inf).amax(1)
        bad = torch.zeros(n, device=DEVICE).index_add(0, text.case, (~right).float()) > 0
        asked = F.one_hot(text.case_task, len(TASKS)).float()
    return (total.log1p() * HARD[text.case_task]).mean(), (asked * ~bad[:, None]).sum(0), asked.sum(0)


def step_losses(model, text, way, press, o):
    """-> the loss; {name: value}; right densely, with lists, asked [6]"""
    dtype = torch.bfloat16 if BF16 else torch.float32
    x = model.lower(text.tokens, dtype, way)
    looked = model.look(x, text.tail, dtype)
    if text.kind == MANY:
        y, = model.attend_tail(looked, None, [None])
        dense, right, asked = answers(text, model.predict(x, y, text, dtype))
        return dense, {"many": dense}, None
    rows, n = text.wanted.shape[1:]
    means, mass = masses(looked[0], looked[3], rows)
    far = far_blocks(rows, n)
    over = mass - math.log(ALPHA) + JITTER * (2 * torch.rand(text.b, 1, 1, 1, device=DEVICE) - 1)
    soft = torch.where(far, (over / SLOPE).sigmoid(), 1.0)
    hard = ((over >= 0) | ~far).float()
    gate = soft + (hard - soft).detach()
    y, listed_y = model.attend_tail(looked, means, [None, gate])
    dense, right, asked = answers(text, model.predict(x, y, text, dtype))
    sparse, listed_right, _ = answers(text, model.predict(x, listed_y, text, dtype))
    wanted = text.wanted[:, None]
    short = (-KEEP - mass).clamp(min=0)
    lack = ((0.3 * short.mean(1) + short.amin(1)) * text.wanted).sum() / text.wanted.sum().clamp(min=1)
    other = far & ~wanted & ~text.akin[:, None] & text.asking[:, None, :, None]
    left = F.softplus((over + LEAVE) / SLOPE) * SLOPE
    opened = (left * other).sum((0, 2, 3)) / other.sum().clamp(min=1)  # of each KV head
    opened = 0.5 * opened.mean() + 0.5 * opened.amax()
    loss = dense + o.sparse * sparse + o.lack * lack + press * opened
    with torch.no_grad():
        asking = text.asking[:, None, :, None] & far
        density = [(hard[:, g:g + 1] * asking).sum() / asking.sum().clamp(min=1) for g in range(hard.shape[1])]
        have = (hard.amax(1) * text.wanted).sum() / text.wanted.sum().clamp(min=1)
    return loss, {"dense": dense, "sparse": sparse, "lack": lack, "open": opened, "found": have,
                  **{"far%d" % g: d for g, d in enumerate(density)}}, (right, listed_right, asked)


# ---- what a state is worth ----

class Held:
    """Prompts of the suite that are not trained on."""

    def __init__(self, maker, prompts, length, at_once):
        self.parts = []
        for task in range(len(TASKS)):
            n = prompts * (2 if task == 1 else 1)
            self.parts += [maker.text(task, min(at_once, n - a), length, tail=min(TAIL, 4 * BLOCK)) for a in range(0, n, at_once)]

    @torch.no_grad()
    def measure(self, model, ways=WAYS, thorough=False):
        """-> {way: share right [6]}, asked [6], densities of lists at questions by KV head [G], share of wanted blocks that some list has.
        thorough: float32, and the lower layers have each way's lists too; else those of sparse prompts."""
        dtype = torch.bfloat16 if BF16 and not thorough else torch.float32
        if thorough:
            torch.set_float32_matmul_precision("highest")
        right, asked = {w: torch.zeros(len(TASKS), device=DEVICE) for w in ways}, torch.zeros(len(TASKS), device=DEVICE)
        kept, of, have, need = torch.zeros(model.G, device=DEVICE), 0.0, 0.0, 0.0
        for text in self.parts:
            below = {}
            for way in ways:
                under = "full" if way == "dense" else way if thorough else "sparse"
                if under not in below:
                    below[under] = model.lower(text.tokens, dtype, under)
                x = below[under]
                looked = model.look(x, text.tail, dtype)
                gate, means = None, None
                if way != "dense":
                    means, mass = masses(looked[0], looked[3], text.wanted.shape[1])
                    keep = listed(mass, way)
                    gate = keep.float()
                y, = model.attend_tail(looked, means, [gate])
                _, got, cases = answers(text, model.predict(x, y, text, dtype))
                right[way] += got
                if way == "dense":
                    asked += cases
                if way == "sparse":
                    rows, n = text.wanted.shape[1:]
                    seen = torch.arange(n, device=DEVICE) <= torch.arange(n - rows, n, device=DEVICE)[:, None]
                    seen = seen & text.asking[:, :, None]
                    kept += (keep & seen[:, None]).sum((0, 2, 3))
                    of += seen.sum().item()
                    have += (keep.any(1) & text.wanted).sum().item()
                    need += text.wanted.sum().item()
        if thorough:
            torch.set_float32_matmul_precision("high")
        return {w: (x / asked.clamp(min=1)).tolist() for w, x in right.items()}, asked.tolist(), (kept / of).tolist(), have / max(1, need)


def worth(share):
    """Dense answers, lists' as many as those, and what wrong lists lose, up to 35 points a task."""
    total = 0.0
    for t in range(len(TASKS)):
        dense, sparse, spread, turned = (share[w][t] for w in WAYS[:4])
        total += 4 * dense + 3 * min(0.0, sparse - dense + 0.01) + min(0.35, sparse - spread) + min(0.35, sparse - turned)
    return total


def show(found):
    share, asked, density, have = found
    for t, name in enumerate(TASKS):
        log("    %-8s" % name, " ".join("%s %.3f" % (w, share[w][t]) for w in share), "of %d" % asked[t])
    log("    density of lists at questions by KV head", " ".join("%.3f" % d for d in density), "wanted blocks that some list has %.3f" % have)


# ---- training ----

class Optimiser:
    """Muon for matrices; AdamW for the embedding and norms, faster for those of the last layer's queries and keys, which are large."""

    def __init__(self, model, o):
        named = dict(model.named_parameters())
        self.matrices = [p for p in named.values() if p.dim() == 3]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        fast = [p for n, p in named.items() if n in ("q_norm", "k_norm")]
        rest = [p for n, p in named.items() if p.dim() != 3 and n not in ("q_norm", "k_norm")]
        self.adam = torch.optim.AdamW([{"params": rest, "rate": o.rate * 0.19}, {"params": fast, "rate": o.norms}], lr=0.0, betas=(0.9, 0.98),
                                      weight_decay=0.0, fused=DEVICE.type == "cuda")
        self.rate = o.rate

    def forget(self):
        for m in self.momentum:
            m.zero_()
        self.adam.state.clear()

    @torch.no_grad()
    def step(self, scale):
        for p, m in zip(self.matrices, self.momentum):
            m.lerp_(p.grad, 0.05)
            update = orthogonal(torch.lerp(p.grad, m, 0.95).view(-1, *p.shape[-2:])).view_as(p)
            rate = self.rate * scale
            p.mul_(1 - rate * 0.01).add_(update, alpha=-rate * max(1, p.shape[-2] / p.shape[-1]) ** 0.5)
            p.grad = None
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def sizes(step):
    """-> kind, texts, tokens"""
    if TINY:
        return (MANY if step % 4 == 3 else FEW), int(os.environ.get("NEEDLES_TEXTS", "1")), 2048
    k = step % 16
    if k in (3, 11):
        return MANY, 32, 4096
    if k == 7:
        return FEW, 64, 2048
    if k == 15:
        return (MANY, 8, 16384) if step % 32 == 15 else (FEW, 8, 16384)
    return FEW, 32, 4096


def keep(model, path):
    save_file(model.files(), path + ".new", metadata={"format": "pt"})
    os.replace(path + ".new", path)


def weights_into(model, path):
    weights = load_file(path)
    with torch.no_grad():
        for name, part in model.named().items():
            part.copy_(weights[name])


def train(model, mean, maker, held, o, until):
    optimiser = Optimiser(model, o)
    texts, way, chance = maker.ahead(sizes), None, random.Random(o.seed)
    press, smooth, best, said, slower = o.press, None, -1e9, 0, 1.0
    synchronize()
    begin, count, progress, logged = time.time(), 0, 0.0, {}
    look_at = 0.0
    while True:
        if count % 8 == 0:
            synchronize()
            now = time.time()
            progress = (now - begin) / (until - begin)
            if now - begin >= look_at or progress >= 1:
                found = held.measure(mean)
                value = worth(found[0])
                synchronize()
                log("  step %d, %.0f%%: worth %.3f, measured in %.1f s" % (count, 100 * progress, value, time.time() - now))
                show(found)
                look_at = time.time() - begin + max(o.every, 12 * (time.time() - now))
                if value > best:
                    best = value
                    keep(mean, o.save)
                elif value < best - o.back:
                    log("  back to the best state, at half the rate")
                    weights_into(model, o.save)
                    mean.load_state_dict(model.state_dict())
                    optimiser.forget()
                    slower *= 0.5
            if progress >= 1:
                break
        text = next(texts)
        way = "local" if chance.random() < 0.5 else "full"
        loss, values, right = step_losses(model, text, way, press, o)
        loss.backward()
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimiser.step(slower * min(1.0, (count + 1) / 100) * min(1.0, (1 - progress) / o.fall + 0.01))
        with torch.no_grad():
            torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 1 - min(o.mean, (1 + count) / (10 + count)))
        logged.update({k: v.detach() for k, v in values.items()})
        if right is not None:
            right = torch.stack(right)
            smooth = right if smooth is None else torch.lerp(smooth, right, 0.03)
            if count % 8 == 0:  # a look at the device's numbers waits for it
                share = smooth[:2] / smooth[2].clamp(min=1e-3)
                gap = (share[0] - share[1]).tolist()
                well = sum(gap) / len(gap) < o.slack and max(gap) < 4 * o.slack
                press = min(o.limit, press * o.grow) if well else max(o.least, press * 0.94)
        if time.time() - begin >= said:
            said = time.time() - begin + o.say
            share = smooth[:2] / smooth[2].clamp(min=1e-3)
            log("step %d, %.0f%%, press %.2f:" % (count, 100 * progress, press), " ".join("%s %.3f" % (k, v.item()) for k, v in logged.items()),
                "| dense", " ".join("%.3f" % x for x in share[0].tolist()), "| sparse", " ".join("%.3f" % x for x in share[1].tolist()),
                "| norms q %.1f k %.1f" % (model.q_norm[-1].norm().item(), model.k_norm[-1].norm().item()))
        count += 1
    log(count, "steps, %.1f ms each; best %.3f" % (1e3 * (time.time() - begin) / max(1, count), best))
    return count


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out")
    arguments.add_argument("--start", required=True)
    arguments.add_argument("--resume")
    arguments.add_argument("--save")
    arguments.add_argument("--library")
    arguments.add_argument("--seconds", type=float, default=480)
    arguments.add_argument("--last", type=float, default=40, help="seconds that are kept for the last measurement")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--rate", type=float, default=0.004, help="of matrices")
    arguments.add_argument("--norms", type=float, default=0.005, help="of the norms of queries and keys")
    arguments.add_argument("--back", type=float, default=2.0, help="go back to the best state where one is worth so much less")
    arguments.add_argument("--fall", type=float, default=0.6, help="the last part of the time, in which the rate falls")
    arguments.add_argument("--mean", type=float, default=0.995, help="of the mean of states that is kept")
    arguments.add_argument("--sharpen", type=float, default=2.0, help="what the last layer's queries are multiplied with, without --resume")
    arguments.add_argument("--sparse", type=float, default=1.0, help="what answers with lists weigh")
    arguments.add_argument("--lack", type=float, default=1.0)
    arguments.add_argument("--press", type=float, default=0.3, help="what open gates weigh at first; then between --least and --limit")
    arguments.add_argument("--least", type=float, default=0.1)
    arguments.add_argument("--limit", type=float, default=4.0)
    arguments.add_argument("--grow", type=float, default=1.05)
    arguments.add_argument("--slack", type=float, default=0.012, help="what lists may lose meanwhile")
    arguments.add_argument("--every", type=float, default=20)
    arguments.add_argument("--say", type=float, default=10)
    arguments.add_argument("--prompts", type=int, default=12, help="of each task, at a measurement; three times as many at the last")
    arguments.add_argument("--smoke", action="store_true")
    o = arguments.parse_args()
    os.makedirs(o.out, exist_ok=True)
    o.save = o.save or os.path.join(o.out, "model.safetensors")
    torch.manual_seed(o.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)
    length, at_once = (2048, 2) if TINY else (4096, 8)
    if o.smoke:
        o.prompts, o.every, o.say = 1 if TINY else 2, 10, 2
    threads = max(1, min(8, (os.cpu_count() or 2) - 2))
    library = build(o.library)
    held = Held(Maker(library, 777, threads), o.prompts, length, at_once)
    model, mean = (Needles.load(o.start, DEVICE) for _ in range(2))
    if o.resume:
        weights_into(model, o.resume)
    else:
        with torch.no_grad():
            for i in range(3):  # marks that the model never saw
                model.embed[AGAIN + i] = model.embed[RECORD] + 0.1 * model.embed[RECORD].std() * torch.randn_like(model.embed[RECORD])
            model.q_norm[-1] *= o.sharpen
    mean.load_state_dict(model.state_dict())
    model.requires_grad_(True)
    log("%.3f M parameters, %s, %d threads, seconds %.0f, %s" % (
        sum(p.numel() for p in model.parameters()) / 1e6, DEVICE, threads, o.seconds, vars(o)))
    steps = train(model, mean, Maker(library, o.seed + (2 if o.resume else 1) * 10 ** 6 + int(time.time()), threads), held, o,
                  START + o.seconds - (15 if o.smoke else o.last))
    del model
    weights_into(mean, o.save)
    for name in ("config.json", "generation_config.json"):
        with open(os.path.join(o.start, name)) as f, open(os.path.join(o.out, name), "w") as g:
            g.write(f.read())
    if o.save != os.path.join(o.out, "model.safetensors"):
        keep(mean, os.path.join(o.out, "model.safetensors"))
    report = {"seconds": round(time.time() - START), "steps": steps, "seed": o.seed, "tasks": TASKS, "exact": {}}

    def write():
        with open(os.path.join(o.out, "report.json"), "w") as f:
            json.dump(report, f, indent=1)
            f.write("\n")

    write()
    last = Held(Maker(library, 778, threads), o.prompts * 3, length, at_once)
    log("last, %d tokens:" % length)
    found = last.measure(mean, thorough=True)
    show(found)
    report["exact"][str(length)] = {"right": found[0], "cases": found[1], "density": found[2], "found": found[3]}
    write()
    for length, n, b in ((1024, 8, 16), (16384, 4, 1)):
        if TINY or time.time() - START > o.seconds - 10:
            break
        log("%d tokens:" % length)
        found = Held(Maker(library, 779, threads), n, length, b).measure(mean, ("dense", "sparse") if length < 5000 else ("dense",))
        show(found)
        report["exact"][str(length)] = {"right": found[0], "cases": found[1]}
        write()


if __name__ == "__main__":
    main()
