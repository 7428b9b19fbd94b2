#!/usr/bin/env python3
"""Train the look-up layer of the needle suite's model alone, so that the lists of --sparse 0.1 bite (docs/sparse.md).

usage: train_lookup.py MODEL_DIR OUT_DIR [--seconds N] [--seed N] [--rate R] [--press X] [--every N]

MODEL_DIR holds what train_needles.py leaves. Leaves OUT_DIR/model.safetensors (the best state so far, each time that one is found) and
report.json. The budget is for training and what is measured on the way, every --every seconds; a state is worth what
worth() says of sequences that it never saw. --check: a few steps of everything on a tiny size. Needs torch, safetensors; one GPU.

The layers below are frozen: their output is computed once a sequence, without gradients. Questions stand at a prompt's end, so the last
layer needs the rows of the last TAIL positions alone; its products of queries and keys are kept whole, and give the dense answers and
those with lists from one pass. The text is that of cmd/bench/needles_make.c, as many prompts of each task, drawn anew each step;
every fourth step is the text of train_needles.py, for dense answers alone.

Losses: the answers, densely and with lists; blocks that answers are read of shall score KEEP below the best at most, in each KV head and
more so in one of them; other blocks' gates shall be shut. The gate of a block is 0 or 1 as its list says, and has the slope of a sigmoid. The
last loss weighs more, task by task, while lists answer what dense attention does and dense attention what it did, else less. The layer's
queries are made larger at first (--sharpen): dense answers stay, and lists have fewer blocks, too few; what follows mends that.
"""
import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import train_needles as text
from pair_model import Target, rms_norm, rope
from train_needles import (ASK, ASK_ALL, BLOCK, COPY, GROUP, KEY_0, KEYS, PAD, POINTER, RECORD, SPAN, UNIT, UNITS, VALUE_0, VALUES,
                           uniform, whole)
from train_pair import DEVICE, TINY, log, synchronize

TASKS = ("records", "keys", "last", "values", "chains", "copies")
QUESTIONS = (4, 1, 4, 4, 2, 4)      # groups of a prompt of the task
CASES = (4, 1, 4, 4, 8, 4)          # of a prompt
HARD = (1.0, 1.0, 2.0, 1.5, 1.0, 2.0)  # what a task's answers weigh
HOPS = (4, 3, 2, 1, 1, 1, 2, 2)
DEPTHS, SINK, WINDOW = 12, 2, 4
DECOY_POINTERS, DECOY_WRITES = 0.12, 0.08
ASKED = 96         # of train_needles.py's text
TAIL = 4 * BLOCK   # rows of the last layer: all questions are among them
ALPHA = 0.1
KEEP, LEAVE, SLOPE, JITTER = 1.5, 0.5, 0.5, 0.3  # natural logarithms of scores; the gates' threshold is moved by up to JITTER
WAYS = ("dense", "right", "spread", "turned")
LIVE = None
MOST = False  # --open most


class Prompts:
    """b = 6 c prompts, c of each task in turn. tokens [b, length]; of the last TAIL positions, weight [b, TAIL] of predicting what follows
    each, goal [b, TAIL, 4] (any of the four is right where several [b, TAIL]), case [b, TAIL] (-1: none), wanted [b, 4, blocks]: the
    blocks that a block of rows reads answers of, but for those that every list has."""

    def __init__(self, c, length):
        b, n_units = 6 * c, length // UNIT + 1
        self.c, self.b, self.rows = c, b, torch.arange(b, device=DEVICE)
        at = torch.arange(n_units, device=DEVICE).expand(b, n_units)
        self.at = at
        self.pad = 2 + 2 * whole(0, GROUP // 2, b)
        asked = torch.tensor(QUESTIONS, device=DEVICE).repeat_interleave(c)
        self.n = ((length - self.pad) // GROUP - asked) * UNITS  # units before the questions
        section = (uniform(b, n_units) < 1 / 32).long().cumsum(1) % (KEYS - 1)
        first, second = (KEY_0 + uniform(b, KEYS).argsort(1) for _ in range(2))
        self.k1, self.k2 = first.gather(1, section), second.gather(1, at % KEYS)
        self.value = whole(VALUE_0, VALUE_0 + VALUES, b, n_units, 3)
        self.mark = torch.full((b, n_units), RECORD, device=DEVICE)
        group = at // UNITS
        body = at < self.n[:, None]
        self.span = (group % 7 == 3) & body
        self.free = ~self.span & body  # nobody's evidence
        self.source = torch.full((b, n_units, 4), -1, device=DEVICE)
        self.asks = torch.zeros(b, n_units, dtype=torch.int8, device=DEVICE)  # tokens of a unit that are predicted
        self.of = torch.full((b, n_units), -1, device=DEVICE)
        spare = first[:, -1:].expand(b, n_units)
        self.k1 = torch.where(body, self.k1, spare)
        self.k2 = torch.where(body, self.k2, whole(KEY_0, KEY_0 + KEYS, b, n_units))
        copies = self.choose_spans(slice(5 * c, 6 * c))
        for task, make in enumerate((self.records, self.keys, self.last, self.values, self.chains)):
            make(slice(task * c, (task + 1) * c))
        self.decoys()
        self.write(length, copies)

    # ---- where evidence lies ----

    def place(self, s, least=0, below=None):
        """A free unit of each of the rows s, near one of the suite's depths or anywhere, at or behind least; used from then on."""
        n, pad, at = self.n[s], self.pad[s], self.at[s]
        end = pad + n * UNIT
        sink, last = SINK * BLOCK + 1, (end // BLOCK - WINDOW + 1) * BLOCK
        depth = whole(0, DEPTHS, len(n))
        token = sink + (last - sink) * (depth - 1) // (DEPTHS - 3)
        token = torch.where(depth == 0, 0, torch.where(depth == DEPTHS - 2, last - BLOCK // 2, torch.where(depth == DEPTHS - 1, end, token)))
        near = ((token - pad) // UNIT).clamp(min=0)
        near = torch.where(uniform(len(n)) < 0.5, near, (uniform(len(n)) * n).long())
        far = (at - near[:, None]).abs() + 12 * uniform(*at.shape)
        return self.take(s, torch.where(self.free[s] & (at >= least), far, 1e9).argmin(1))

    def anywhere(self, s, low, below):
        """A free unit of low <= u < below, each as likely -> u, whether there is one."""
        at = self.at[s]
        may = self.free[s] & (at >= low[:, None]) & (at < below[:, None])
        u = (uniform(*at.shape) * may + may).argmax(1)
        found = may.any(1)
        self.free[self.rows[s], u] &= ~found
        return u, found

    def take(self, s, u):
        self.free[self.rows[s], u] = False
        return u

    def same_key(self, s, u, root, where):
        r = self.rows[s]
        for key in (self.k1, self.k2):
            key[r, u] = torch.where(where, key[r, root], key[r, u])

    def ask(self, s, place, u, of, tokens=3):
        """The unit of that number behind the body asks for u's key."""
        r, q = self.rows[s], self.n[s] + place
        self.k1[r, q], self.k2[r, q], self.value[r, q] = self.k1[r, u], self.k2[r, u], self.value[r, u]
        self.mark[r, q] = ASK
        self.source[r, q] = u[:, None].expand(-1, 4)
        self.asks[r, q] = tokens
        self.of[r, q] = of

    # ---- tasks ----

    def records(self, s):
        for i in range(4):
            self.ask(s, i * UNITS + UNITS - 1, self.place(s), i)

    def keys(self, s):
        for k in range(8):
            self.ask(s, 4 + k, self.place(s), 0)

    def last(self, s):
        zero = torch.zeros_like(self.n[s])
        for i in range(4):
            last = self.place(s, 8)
            root, there = self.anywhere(s, zero, last)
            self.same_key(s, last, root, there)
            writes = whole(2, 5, len(last))
            for w in (2, 3):
                u, found = self.anywhere(s, root + 1, torch.where(there & (writes > w), last, 0))
                self.same_key(s, u, root, found)
            self.ask(s, i * UNITS + UNITS - 1, last, i)

    def values(self, s):
        zero, r = torch.zeros_like(self.n[s]), self.rows[s]
        for i in range(4):
            u = torch.stack([self.place(s)] + [self.anywhere(s, zero, self.n[s])[0] for _ in range(3)], 1)
            root = u.amin(1)
            for w in range(4):
                self.same_key(s, u[:, w], root, torch.ones_like(root, dtype=torch.bool))
            place = i * UNITS + UNITS - 1
            self.ask(s, place, u.gather(1, whole(0, 4, len(u), 1))[:, 0], i, 1)
            q = self.n[s] + place
            self.source[r, q], self.mark[r, q] = u, ASK_ALL
            self.value[r, q, 1:] = PAD

    def chains(self, s):
        zero, r, place = torch.zeros_like(self.n[s]), self.rows[s], 0
        for i, hops in enumerate(HOPS):
            chain = [self.place(s, 4)]
            for _ in range(hops):
                u, found = self.anywhere(s, zero, chain[-1])
                u = torch.where(found, u, self.free[s].long().argmax(1))
                self.take(s, u)
                before = chain[-1]
                self.value[r, before, 0], self.value[r, before, 1] = self.k1[r, u], self.k2[r, u]
                self.value[r, before, 2] = POINTER
                chain.append(u)
            for h, u in enumerate(chain):
                self.ask(s, place, u, i, 6 if h else 3)
                place += 1

    def choose_spans(self, s):
        """-> four groups of each of the rows s, which are spans from then on [c, 4]"""
        groups = self.n[s] // UNITS
        all_groups = self.at[s][:, :self.at.shape[1] // UNITS]
        edge = torch.where(uniform(*all_groups.shape) < 0.2, ((all_groups < 5) | (all_groups >= groups[:, None] - 5)).float(), 0.0)
        chosen = torch.where(all_groups < groups[:, None], uniform(*all_groups.shape) + edge, -1.0).topk(4, 1).indices
        mine = (self.at[s] // UNITS)[:, :, None] == chosen[:, None, :]
        self.span[s] |= mine.any(-1)
        self.free[s] &= ~self.span[s]
        return chosen

    def decoys(self):
        to = (uniform(*self.at.shape) * self.at).long()
        kind = uniform(*self.at.shape)
        may = self.free & self.free.gather(1, to) & (self.at > 0)
        k1, k2 = self.k1.gather(1, to), self.k2.gather(1, to)
        points = may & (kind < DECOY_POINTERS)
        again = may & ~points & (kind < DECOY_POINTERS + DECOY_WRITES)
        self.value = torch.where(points[..., None], torch.stack([k1, k2, torch.full_like(k1, POINTER)], -1), self.value)
        self.k1, self.k2 = torch.where(again, k1, self.k1), torch.where(again, k2, self.k2)

    # ---- tokens ----

    def write(self, length, copies):
        b, n_units = self.at.shape
        spans = self.span[..., None]
        units = torch.cat([torch.stack([self.mark, self.k1, self.k2], -1), self.value], -1)
        units = torch.where(spans, whole(VALUE_0, VALUE_0 + VALUES, b, n_units, UNIT), units)
        head = self.span & (self.at % UNITS == 0)
        units[..., 0] = torch.where(head, SPAN, units[..., 0])
        units[..., 1] = torch.where(head, self.k1, units[..., 1])
        units[..., 2] = torch.where(head, whole(KEY_0, KEY_0 + KEYS, b, n_units), units[..., 2])
        flat = units.flatten(1)
        offset = torch.arange(UNIT, device=DEVICE)
        asked = (offset >= 3) & (offset < 3 + self.asks[..., None].clamp(max=3)) | (self.asks == 6)[..., None]
        weight = asked.float().flatten(1)
        source = torch.where((self.source >= 0)[:, :, None, :] & (offset >= 3)[:, None], self.source[:, :, None, :] * UNIT +
                             offset[:, None], -1).flatten(1, 2)
        case = torch.where(asked, self.of[..., None], -1).flatten(1)
        s, text_of = slice(5 * self.c, b), torch.arange(GROUP, device=DEVICE)
        r = self.rows[s, None]
        for i in range(4):
            to, of = self.n[s, None] * UNIT + i * GROUP + text_of, copies[:, i, None] * GROUP + text_of
            flat[r, to] = flat[r, of]
            flat[r[:, 0], to[:, 0]] = COPY
            weight[r, to[:, 3:]] = 1.0
            source[r, to[:, 3:]] = of[:, 3:, None].expand(-1, -1, 4)
            case[r, to[:, 3:]] = i
        place = torch.arange(length, device=DEVICE) - self.pad[:, None]
        inside = place.clamp(min=0)
        self.tokens = torch.where(place < 0, PAD, flat.gather(1, inside))

        next_one = F.pad(inside[:, length - TAIL + 1:], (0, 1), value=0)
        self.weight = weight.gather(1, next_one)
        self.weight[:, -1] = 0
        self.chosen = self.weight > 0
        self.case = torch.where(self.chosen, case.gather(1, next_one), -1)
        read = source.gather(1, next_one[..., None].expand(-1, -1, 4))
        self.several = torch.zeros_like(self.chosen)
        self.several[3 * self.c:4 * self.c] = self.chosen[3 * self.c:4 * self.c]
        found = flat.gather(1, read.clamp(min=0).flatten(1)).view_as(read)
        true = flat.gather(1, next_one)[..., None].expand_as(read)
        self.goal = torch.where(self.several[..., None], found, true)
        n_blocks = length // BLOCK
        block = torch.where((read >= 0) & self.chosen[..., None], (read + self.pad[:, None, None]) // BLOCK, n_blocks)
        self.wanted = torch.zeros(b, 4, n_blocks + 1, dtype=torch.bool, device=DEVICE)
        self.wanted = self.wanted.scatter(2, block.view(b, 4, -1), True)[..., :n_blocks] & far_blocks(n_blocks)
        self.asking = self.weight.view(b, 4, BLOCK).sum(-1) > 0


class General:
    """The same of the text of train_needles.py, for dense answers: ASKED predicted rows of the last TAIL of each sequence, or fewer."""

    def __init__(self, b, length):
        batch = text.Batch(b, length, uniform(b) < 0.5)
        self.b = self.c = b
        self.tokens = batch.tokens
        weight = F.pad(batch.weight[:, 1 - TAIL:], (0, 1))
        at = ((weight > 0) * (1 + uniform(b, TAIL))).topk(ASKED, 1).indices
        self.chosen = torch.zeros_like(weight, dtype=torch.bool).scatter(1, at, True)
        self.weight = weight[self.chosen]
        self.goal = F.pad(self.tokens[:, 1 - TAIL:], (0, 1))[..., None]
        self.several = torch.zeros_like(self.chosen)


def general_loss(lookup, p, x):
    """-> the mean of what predicted tokens lose, each by its weight, and the share of those of full weight that is right"""
    logits, loss = answers(lookup, p, x, lookup.attend(p, lookup.look(x), (None,))[0])
    sure = p.weight == 1
    return (loss * p.weight).sum() / p.weight.sum().clamp(min=1), is_right(p, logits)[sure].float().mean()


def far_blocks(n):
    """[the last 4 blocks of rows, n blocks] that lists may leave out"""
    at = torch.arange(n, device=DEVICE)
    return (at >= SINK) & (at <= torch.arange(n - 4, n, device=DEVICE)[:, None] - WINDOW)


# ---- the frozen layers ----

def attention(q, k, v, exact, lists):
    """q [b, H, T, D], k, v [b, G, T, D] -> [b, T, H D]. exact: float32. lists: with those of docs/sparse.md."""
    R, D, n, T = q.shape[1] // k.shape[1], q.shape[-1], k.shape[2] // BLOCK, k.shape[2]
    if not lists:
        q, k, v = (x if exact or TINY else x.to(torch.bfloat16) for x in (q, k, v))
        k, v = (x.repeat_interleave(R, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).float()
    at, means = torch.arange(T, device=DEVICE), [x.unflatten(2, (n, BLOCK)).mean(3) for x in (k, v)]
    hidden = (at[:n] + 1) * BLOCK - 1 > at[:, None]
    mass = (q * D ** -0.5 @ means[0].repeat_interleave(R, 1).transpose(2, 3)).masked_fill(hidden, -1e4)
    mass = mass.unflatten(2, (n, BLOCK)).logsumexp(3)
    mass = (mass - mass.amax(-1, keepdim=True)).unflatten(1, (-1, R)).amax(2)
    past, far = at[:n] <= at[:n, None], (at[:n] >= SINK) & (at[:n] <= at[:n, None] - WINDOW)
    keep = ((mass >= math.log(ALPHA)) | ~far) & past
    bias = torch.cat([torch.where(keep.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3) & (at <= at[:, None]), 0.0, -torch.inf),
                      torch.where(keep | ~past, -torch.inf, math.log(BLOCK)).repeat_interleave(BLOCK, 2)], -1)
    k, v = (torch.cat(x, 2).repeat_interleave(R, 1) for x in ((k, means[0]), (v, means[1])))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.repeat_interleave(R, 1)).transpose(1, 2).flatten(2)


@torch.no_grad()
def below(model, tokens, exact=False, lists=False):
    """-> what the last layer reads [b, T, E]"""
    x, positions = F.embedding(tokens, model.embed), torch.arange(tokens.shape[1], device=DEVICE)
    for i in range(model.L - 1):
        n = model.normed(x, "norm_1", i, torch.float32)
        q, k = (model.heads(n, name, i, count, positions).transpose(1, 2) for name, count in (("q", model.H), ("k", model.G)))
        y = attention(q, k, model.values(n, i).transpose(1, 2), exact, lists)
        x = x + F.linear(y, model.o[i])
        x = x + model.mlp(model.normed(x, "norm_2", i, torch.float32), i)
    return x


# ---- the look-up layer ----

class Lookup(torch.nn.Module):
    """The last layer and the final norm, over the rows of the last TAIL positions. The embedding is the model's."""

    def __init__(self, model):
        super().__init__()
        self.model, self.parts = [model], []
        for name in ("q", "k", "v", "o", "q_norm", "k_norm", "norm_1", "norm_2", "gate", "up", "down"):
            setattr(self, name, torch.nn.Parameter(getattr(model, name)[-1].detach().clone()))
            self.parts.append(name)
        self.norm = torch.nn.Parameter(model.norm.detach().clone())
        R, D = model.H // model.G, model.D
        self.mask = torch.ones(model.H * D, device=DEVICE)
        if LIVE is not None:
            self.mask.zero_()
            self.mask[LIVE * R * D:(LIVE + 1) * R * D] = 1

    @torch.no_grad()
    def store(self):
        """In the model, as its file rounds it. -> a layer of that, for what is measured"""
        model = self.model[0]
        self.o.mul_(self.mask)
        for name in self.parts:
            getattr(model, name)[-1].copy_(getattr(self, name).to(torch.bfloat16))
        model.norm.copy_(self.norm.to(torch.bfloat16))
        return Lookup(model)

    def turned(self, y, weight, positions):
        m = self.model[0]
        return rope(rms_norm(y, weight, torch.float32), m.cos[positions].unsqueeze(-2), m.sin[positions].unsqueeze(-2)).transpose(1, 2)

    def look(self, x):
        """x [b, T, E] -> q [b, G, R, TAIL, D] scaled, k, v [b, G, T, D], their means over blocks, and mass [b, H, 4, blocks]: logarithms of the
        scores of the last four blocks of rows, less that of the best."""
        m, T = self.model[0], x.shape[1]
        n = rms_norm(x, self.norm_1, torch.float32)
        at = torch.arange(T, device=DEVICE)
        q = self.turned(F.linear(n[:, T - TAIL:], self.q).unflatten(-1, (m.H, m.D)), self.q_norm, at[T - TAIL:]) * m.D ** -0.5
        k = self.turned(F.linear(n, self.k).unflatten(-1, (m.G, m.D)), self.k_norm, at)
        v = F.linear(n, self.v).unflatten(-1, (m.G, m.D)).transpose(1, 2)
        q = q.unflatten(1, (m.G, m.H // m.G))
        k_mean, v_mean = (y.unflatten(2, (-1, BLOCK)).mean(3) for y in (k, v))
        mass = (q.flatten(2, 3) @ k_mean.transpose(2, 3)).unflatten(2, (-1, TAIL)).flatten(1, 2)
        hidden = (at[:T // BLOCK] + 1) * BLOCK - 1 > at[T - TAIL:, None]
        mass = mass.masked_fill(hidden, -1e4).unflatten(2, (4, BLOCK)).logsumexp(3)
        return q, k, v, k_mean, v_mean, mass - mass.amax(-1, keepdim=True)

    def attend(self, p, looked, gates):
        """gates: of each way None, or [b, G, 4, blocks], 1 where a list has the block. -> of each way [predicted, H D]"""
        q, k, v, k_mean, v_mean, _ = looked
        R, T = q.shape[2], k.shape[2]
        n = T // BLOCK
        out = [[] for _ in gates]
        for a in range(0, p.b, p.c):
            s = slice(a, a + p.c)
            rows = p.chosen[s].nonzero()[:, 1].view(p.c, -1)  # as many of each prompt of a task
            mine = q[s].gather(3, rows[:, None, None, :, None].expand(-1, q.shape[1], R, -1, q.shape[4])).flatten(2, 3)
            full = torch.arange(T, device=DEVICE) > (rows + T - TAIL)[..., None]  # [c, rows, T]
            scores = (mine @ k[s].transpose(2, 3)).masked_fill(full[:, None].repeat(1, 1, R, 1), -torch.inf)
            for gate, to in zip(gates, out):
                if gate is None:
                    y = scores.softmax(-1) @ v[s]
                else:
                    g = gate[s].gather(2, (rows // BLOCK)[:, None, :, None].expand(-1, gate.shape[1], -1, n)).repeat(1, 1, R, 1)
                    past = (torch.arange(n, device=DEVICE) <= (rows // BLOCK + n - 4)[..., None])[:, None].repeat(1, 1, R, 1)
                    means = (mine @ k_mean[s].transpose(2, 3) + math.log(BLOCK)).masked_fill(~past, -torch.inf)
                    most = torch.maximum(scores.amax(-1, keepdim=True), means.amax(-1, keepdim=True)).detach()
                    e = ((scores - most).exp().unflatten(-1, (n, BLOCK)) * g[..., None]).flatten(-2)
                    other = (1 - g) * (means - most).exp()
                    y = (e @ v[s] + other @ v_mean[s]) / (e.sum(-1, keepdim=True) + other.sum(-1, keepdim=True))
                to.append(y.unflatten(2, (R, -1)).flatten(1, 2).transpose(1, 2).flatten(2).flatten(0, 1))
        return [torch.cat(y) for y in out]

    def rows(self, x, y):
        x = x + F.linear(y * self.mask, self.o)
        n = rms_norm(x, self.norm_2, torch.float32)
        x = x + F.linear(F.silu(F.linear(n, self.gate)) * F.linear(n, self.up), self.down)
        return rms_norm(x, self.norm, torch.float32)

    def logits(self, rows):
        return F.linear(rows, self.model[0].embed)


def listed(mass, way, alpha=ALPHA):
    """mass [b, G, 4, blocks] of the best of a group's heads -> what is kept, as in docs/sparse.md, or as many turned round, or spread."""
    n = mass.shape[-1]
    at, own = torch.arange(n, device=DEVICE), torch.arange(n - 4, n, device=DEVICE)[:, None]
    past, far = at <= own, far_blocks(n)
    keep = ((mass >= math.log(alpha)) | ~far) & past
    count = keep.sum(-1, keepdim=True)
    if way == "turned":
        order = mass.masked_fill(~far, -1e6).masked_fill(~past, 1e6)
        keep = order.argsort(-1).argsort(-1) < count
    if way == "spread":
        free = far.sum(-1, keepdim=True)
        want, j, most = count - (own + 1 - free), at - SINK, free.clamp(min=1)
        keep = (~far & past) | (far & ((j + 1) * want // most > j * want // most))
    return keep


def best_heads(mass, groups):
    best = mass.unflatten(1, (groups, -1)).amax(2)
    return best if LIVE is None else best[:, LIVE:LIVE + 1].expand_as(best)


# ---- losses ----

def answers(lookup, p, x, y):
    """-> logits of the predicted [predicted, vocabulary], their cross-entropy [predicted]"""
    logits = lookup.logits(lookup.rows(x[:, -TAIL:][p.chosen], y))
    goal = p.goal[p.chosen]
    return logits, -logits.log_softmax(-1).gather(1, goal).mean(1) - torch.where(p.several[p.chosen], math.log(4), 0.0)


def is_right(p, logits):
    """-> of each predicted token, as the suite counts"""
    goal, several = p.goal[p.chosen], p.several[p.chosen]
    of_goal = torch.zeros_like(logits, dtype=torch.bool).scatter(1, goal, True)
    least = logits.masked_fill(~of_goal, torch.inf).amin(1)
    return torch.where(several, least > logits.masked_fill(of_goal, -torch.inf).amax(1), logits.argmax(1) == goal[:, 0])


def cases_right(p, logits):
    """-> right, asked [6]: cases of each task"""
    at = p.chosen.nonzero()
    case = at[:, 0] * 16 + p.case[p.chosen]
    bad = torch.zeros(p.b * 16, device=DEVICE).index_add(0, case, (~is_right(p, logits)).float()) > 0
    asked = torch.zeros(p.b * 16, device=DEVICE).index_fill(0, case, 1.0)
    per = lambda z: z.view(6, -1).sum(1)
    return per(asked * ~bad), per(asked)


def by_task(p, loss):
    """The mean over cases of log(1 + sum), of each task [6]: a case is right if all of it is, and one that is far off weighs little more"""
    case = p.chosen.nonzero()[:, 0] * 16 + p.case[p.chosen]
    total = torch.zeros(p.b * 16, device=DEVICE).index_add(0, case, loss.clamp(min=0))
    return total.log1p().view(6, -1).sum(1) / (p.c * torch.tensor(CASES, device=DEVICE))


def losses(lookup, p, x):
    """-> dense, sparse, lack, open: [6] each; cases right densely and with lists, asked [6]"""
    groups = lookup.model[0].G
    looked = lookup.look(x)
    mass = looked[-1]
    mass, far = best_heads(mass, groups), far_blocks(mass.shape[-1])
    over = mass - math.log(ALPHA) + JITTER * (2 * uniform(p.b, 1, 1, 1) - 1)
    soft = torch.where(far, (over / SLOPE).sigmoid(), 1.0)
    hard = (over >= 0) | ~far
    y = lookup.attend(p, looked, (None, soft + (hard.float() - soft).detach()))
    (logits, loss), (listed_logits, listed_loss) = (answers(lookup, p, x, z) for z in y)
    wanted, asking = p.wanted[:, None], p.asking[:, None, :, None]
    short = (-KEEP - mass).clamp(min=0)
    short = (0.3 * short.mean(1) + short.amin(1)) * p.wanted
    other = (far & ~wanted & asking).expand_as(soft)
    per = lambda z: z.unflatten(0, (6, -1)).flatten(1).sum(1)
    lack = per(short) / per(p.wanted.float()).clamp(min=1)
    left = F.softplus((over + LEAVE) / SLOPE) * SLOPE * other
    opened = per(left) / per(other.float()).clamp(min=1)
    if MOST:
        opened = 0.3 * opened + per(left.amax(1)) / per(other[:, 0].float()).clamp(min=1)
    with torch.no_grad():
        right, asked = cases_right(p, logits)
        listed_right, _ = cases_right(p, listed_logits)
    return by_task(p, loss), by_task(p, listed_loss), lack, opened, torch.stack([right / asked, listed_right / asked])


# ---- what a state is worth ----

class Held:
    """Prompts that are not trained on, with what the last layer reads of them: densely, and behind layers with lists."""

    def __init__(self, model, c, length, at_once):
        self.parts = []
        for _ in range(c // at_once):
            p = Prompts(at_once, length)
            x = [torch.cat([below(model, t, True, lists) for t in p.tokens.split(2)]) for lists in (False, True)]
            self.parts.append((p, *x))

    @torch.no_grad()
    def measure(self, lookup):
        """-> {way: share of cases right [6]}, density of the last layer's lists at questions, of wanted blocks those that some list has"""
        torch.set_float32_matmul_precision("highest")
        right, asked, kept, of, have, need = {w: 0 for w in WAYS}, 0, 0, 0, 0, 0
        for p, *inputs in self.parts:
            for x, ways in zip(inputs, (WAYS[:1], WAYS[1:])):
                looked = lookup.look(x)
                lists = [None if w == "dense" else listed(best_heads(looked[-1], lookup.model[0].G), w) for w in ways]
                for w, y in zip(ways, lookup.attend(p, looked, [None if z is None else z.float() for z in lists])):
                    got, cases = cases_right(p, answers(lookup, p, x, y)[0])
                    right[w] = right[w] + got
            keep, asking, per = lists[0], p.asking[:, None, :, None], lambda z: z.flatten(1).sum(1).view(6, -1).sum(1)
            past = torch.arange(keep.shape[-1], device=DEVICE) <= torch.arange(keep.shape[-1] - 4, keep.shape[-1], device=DEVICE)[:, None]
            kept, of = kept + per(keep & asking), of + per((past & asking).expand_as(keep))
            have, need = have + per(keep.any(1) & p.wanted), need + per(p.wanted)
            asked = asked + cases
        torch.set_float32_matmul_precision("high")
        share = {w: (right[w] / asked).tolist() for w in WAYS}
        return share, (kept / of).tolist(), (have / need.clamp(min=1)).tolist(), asked.tolist()


def worth(share, stored):
    """Dense answers as many as before, lists' as many as those; then what wrong lists lose, up to 30 points a task."""
    total = 0.0
    for t in range(len(TASKS)):
        dense, right, spread, turned = (share[w][t] for w in WAYS)
        total -= 6 * max(0.0, stored[t] - dense) + 4 * max(0.0, dense - right - 0.01)
        total += min(0.3, right - spread) + min(0.3, right - turned)
    return total


def show(found):
    share, density, have, asked = found
    for t, name in enumerate(TASKS):
        log("  %-8s" % name, " ".join("%s %.3f" % (w, share[w][t]) for w in WAYS), "of %d, density %.2f, found %.3f" % (
            asked[t], density[t], have[t]))


# ---- training ----

def optimiser_of(lookup, rate, values):
    """What makes scores moves fastest, for only they are to change."""
    parts = {4 * rate: ("q_norm", "k_norm"), rate: ("q", "k"), values * rate: ("v", "o", "norm_1", "norm_2", "gate", "up", "down", "norm")}
    groups = [{"params": [getattr(lookup, n) for n in names], "lr": r, "base": r} for r, names in parts.items()]
    return torch.optim.Adam(groups, betas=(0.9, 0.98), fused=DEVICE.type == "cuda")


def sizes(count):
    """-> tokens, prompts of a task"""
    if TINY:
        return (1024, 2) if count % 4 == 3 else (4096, 1)
    k = count % 10
    return (16384, 2) if k == 9 else (1024, 48) if k == 4 else (2048, 24) if k == 7 else (4096, 12)


def save(model, folder):
    """Whole at any moment."""
    path = os.path.join(folder, "model.safetensors")
    os.makedirs(folder, exist_ok=True)
    save_file(model.files(), path + ".new", metadata={"format": "pt"})
    os.replace(path + ".new", path)


def train(model, lookup, frozen, o, held, stored):
    optimiser, weigh = optimiser_of(lookup, o.rate, o.values), torch.tensor(HARD, device=DEVICE)
    press, smooth = torch.full((6,), o.press, device=DEVICE), None
    best, looked, count, ring, general, exact = -1e9, 0.0, 0, {}, None, torch.ones(())
    synchronize()
    start = time.time()
    while True:
        if count % 4 == 0 or TINY:
            synchronize()
            progress = (time.time() - start) / o.seconds
            if time.time() - start >= looked + o.every or progress >= 1:
                looked = time.time() - start
                found = held.measure(lookup.store())
                value = worth(found[0], stored)
                log("step %d, %.0f s: worth %.3f" % (count, looked, value))
                show(found)
                if value > best:
                    best, final = value, found
                    save(model, o.out)
            if progress >= 1:
                break
        if count % o.again == 0:
            length, c = sizes(count // o.again)
            p = Prompts(c, length)
            x = below(model, p.tokens)
            with torch.no_grad():
                right, asked = cases_right(p, answers(frozen, p, x, frozen.attend(p, frozen.look(x), (None,))[0])[0])
            ring[count // o.again % o.ring] = p, x, right / asked
        p, x, before = ring[random.choice(list(ring))] if count % o.again else ring[count // o.again % o.ring]
        dense, sparse, lack, opened, right = losses(lookup, p, x)
        loss = (weigh * (dense + sparse)).sum() + 0.5 * lack.sum() + (press * opened).sum()
        if count % 4 == 3:
            if count % (4 * o.again) == 3 or general is None:
                general = General(1 if TINY else 32, 4096)
                general_x = below(model, general.tokens)
            of_general, exact = general_loss(lookup, general, general_x)
            loss = loss + 4 * of_general
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lookup.parameters(), 5.0)
        scale = min(1.0, (count + 1) / 50, 1.6 * (1 - progress) + 0.02)
        for group in optimiser.param_groups:
            group["lr"] = group["base"] * scale
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        right = torch.cat([right, before[None]])
        smooth = right if smooth is None else torch.lerp(smooth, right, 0.05)
        well = (smooth[1] >= smooth[0] - o.slack) & (smooth[0] >= smooth[2] - o.slack)
        press = torch.where(well, press * o.grow, press * 0.97).clamp(o.least, o.limit)
        if count % o.say == 0:
            log("step %d, %.0f%%, length %d, general %.3f:" % (count, 100 * progress, length, exact), *("%s %s" % (n, " ".join("%.3f" % y for y in z.tolist())) for n, z in (
                ("dense", dense), ("sparse", sparse), ("lack", lack), ("open", opened), ("right", smooth[0]), ("listed", smooth[1]), ("stored", smooth[2]), ("press", press))))
        count += 1
    log(count, "steps, %.1f ms each; best %.3f" % (1e3 * o.seconds / max(1, count), best))
    return count, final


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("out")
    arguments.add_argument("--seconds", type=float, default=150)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--rate", type=float, default=1e-3)
    arguments.add_argument("--sharpen", type=float, default=2.0, help="what the layer's queries are multiplied with at first")
    arguments.add_argument("--press", type=float, default=0.2, help="what shut gates weigh at first")
    arguments.add_argument("--limit", type=float, default=4.0, help="what they weigh at most")
    arguments.add_argument("--grow", type=float, default=1.015, help="by what factor a step, while all is well")
    arguments.add_argument("--slack", type=float, default=0.01, help="what lists and dense answers may lose meanwhile")
    arguments.add_argument("--least", type=float, default=0.03, help="what shut gates weigh at least")
    arguments.add_argument("--live", default="all", help="the KV head of the layer that answers, the others give nothing: its number, best, or all")
    arguments.add_argument("--open", default="mean", choices=("mean", "most"), help="what is pressed: all KV heads alike, or the most open one more")
    arguments.add_argument("--values", type=float, default=0.25, help="the rate of what does not make scores, to --rate")
    arguments.add_argument("--held", type=int, default=32, help="prompts of each task that states are measured on")
    arguments.add_argument("--every", type=float, default=20)
    arguments.add_argument("--say", type=int, default=50)
    arguments.add_argument("--again", type=int, default=2, help="steps for each batch that is drawn")
    arguments.add_argument("--ring", type=int, default=32, help="batches that are kept for it")
    o = arguments.parse_args()
    global LIVE, MOST
    MOST = o.open == "most"
    model = Target.load(o.model, DEVICE)
    frozen = Lookup(model)
    torch.manual_seed(o.seed + 1000)
    held = Held(model, o.held, 4096, min(4, o.held))
    found = held.measure(frozen)
    log("stored:")
    show(found)
    if o.live == "best":
        dense = []
        for LIVE in range(model.G):
            alone = held.measure(Lookup(model))
            log("kv head %d alone:" % LIVE)
            show(alone)
            dense.append(sum(alone[0]["dense"]))
        LIVE = dense.index(max(dense))
    elif o.live != "all":
        LIVE = int(o.live)
    lookup = Lookup(model)
    with torch.no_grad():
        lookup.q_norm *= o.sharpen
    torch.manual_seed(o.seed)
    random.seed(o.seed)
    steps, final = train(model, lookup, frozen, o, held, found[0]["dense"])
    with open(os.path.join(o.out, "report.json"), "w") as f:
        json.dump({"seconds": o.seconds, "steps": steps, "seed": o.seed, "tasks": TASKS, "exact": final[0], "density": final[1]}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
