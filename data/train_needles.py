#!/usr/bin/env python3
"""Train the small model of the needle suite (dflash-bench needles): Qwen3, heads of 128, 512 raw token ids, 1.9 M parameters.

usage: train_needles.py OUT_DIR [--from DIR] [--states DIR] [--rate R] [--seconds N] [--seed N] [--blocks C] [--check]

Leaves OUT_DIR/config.json, generation_config.json, model.safetensors (bf16, 3.8 MB; dflash-convert takes the folder) and
report.json; prints exact answers by task at 1,024, 4,096 and 16,384 tokens. The budget is for training alone. --check: a few
steps of everything on tiny sizes. --from: go on from what an earlier run left, at 1,024, 4,096 and 16,384 tokens, at a smaller rate and
with more of what is right least often; there the budget has what is measured on the way in it. Needs torch, safetensors; one GPU.

A sequence is made of groups of 72 tokens behind a padding of 1 to 72. Most groups are 12 units of 6 tokens:

    . k1 k2 v1 v2 v3     a record: what is written under the key k1 k2. k1 is the same for some 32 units (a section), and of some
                         sections again later: a key is written again where its section is open
    . k1 k2 j1 j2 &      a record that points to another key
    ? k1 k2 v1 v2 v3     a question and its answer: what was written last under the key
    ? k1 k2 j1 j2 & ? j1 j2 v1 v2 v3   the same of a pointer: it is followed
    ! k1 k2 v1 - -       one of the first values that were ever written under the key, each as likely

and others copies: # k1 k2 and 69 values; later @ k1 k2 and the same 69 values. The loss is that of the answers. Half of the
sequences have questions everywhere, the others at their end, as the suite's have, and half of these few of them, alone among records.
Lengths grow as the answers get right.

Three more losses make the choices of --sparse and --pool find what they should, and nothing else: blocks that answers are read of score
near the best, blocks without a record of any section that is asked for score far below it, and the page of an answer scores best. With
--from half of the later passes have the lists of docs/sparse.md in them.
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

from pair_model import Target
from train_pair import DEVICE, TINY, Optimiser, log, synchronize

END, PAD, RECORD, ASK, ASK_ALL, POINTER, SPAN, COPY = range(8)
KEY_0, KEYS, VALUE_0, VALUES = 16, 240, 256, 256
UNIT, UNITS, GROUP, BLOCK = 6, 12, 72, 128
KEEP = 1.4    # blocks that answers are read of score exp(-KEEP) of the best at least: 0.25, for lists made with 0.1
LEAVE = 3.2   # blocks of other sections score exp(-LEAVE) of the best at most: 0.04
PAGE, TAIL, SHARP = 64, 4, 0.1  # of a pool: positions of a page, the last pages that stay; what its scores are divided by
HOT = 16      # every so many keys are written again
STRAY = 0.06  # of the records of a group: a question in its place
FEW = 0.12    # the same where questions are few
EARLY, CROWD = 96, 0.4  # units in which half of the sequences write a key again so often
HOT_SHARE = 0.3  # of the questions are for these
HARD = 1.9       # what they weigh, being learnt last
SECTION = 8, 56  # units that share k1
REOPENED = 0.3    # sections with the k1 of an earlier one
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": VALUE_0 + VALUES,
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "attention_bias": False,
    "attention_dropout": 0.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}, "layer_types": ["full_attention"] * 3,
    "sliding_window": None, "use_sliding_window": False, "initializer_range": 0.02, "tie_word_embeddings": True, "use_cache": True,
    "bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
GENERATION = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
TASKS = ("records", "last write", "several values", "chains", "copies")
W, Q, S, C = range(4)  # groups: records, questions, spans, copies


def uniform(*shape):
    return torch.rand(*shape, device=DEVICE)


def whole(low, high, *shape):
    return torch.randint(low, high, shape, device=DEVICE)


def earlier(mask):
    """mask [b, U] -> a random earlier unit of it for each unit [b, U]; where there is none: -1."""
    place = (~mask).to(torch.uint8).sort(dim=1, stable=True).indices
    count = mask.long().cumsum(1) - mask.long()
    chosen = place.gather(1, (uniform(*mask.shape) * count).long().clamp(max=mask.shape[1] - 1))
    return torch.where(count > 0, chosen, -1)


def groups(b, n, ends, few):
    """The kinds of n groups [b, n]; rows of ends [b] have questions at their end alone, of few [b] alone among records."""
    r, place = uniform(b, n), torch.arange(n, device=DEVICE)
    tail = place >= min(n - 2, int(0.85 * n))
    kind = torch.where(r < 0.5, W, torch.where(r < 0.62, S, torch.where(r < 0.9, Q, C)))
    late = torch.where(tail, torch.where((r < 0.2) & few[:, None], W, torch.where(r < 0.7, Q, C)), torch.where(r < 0.85, W, S))
    kind = torch.where(ends[:, None], late, kind)
    kind[:, 0] = W
    spans = (kind == S).long().cumsum(1)
    return torch.where((kind == C) & (spans == 0), Q, kind)


class Batch:
    """tokens [b, length]; weight [b, length] of predicting each token; of every unit its task [b, U] (-1: none), and where its
    tokens are. Of tokens [b, length]: key, what their unit's key begins with; asks, whether it is a question or a copy; read, where
    what follows them is read, source, the same of the last token of a question's key; else -1."""

    def __init__(self, b, length, ends, members=False, few=None):
        n = -(-length // GROUP)
        U = n * UNITS
        few = ends & (uniform(b) < 0.5 if few is None else few)
        kind = groups(b, n, ends, few)
        unit_kind = kind.repeat_interleave(UNITS, 1)
        at = torch.arange(U, device=DEVICE)
        before = (UNITS - 1 - (UNITS - 1) * uniform(b, n) ** 2).ceil().repeat_interleave(UNITS, 1)  # records before few questions
        unit_kind = torch.where(few[:, None] & (unit_kind == Q) & (at % UNITS < before), W, unit_kind)
        r = uniform(b, U)
        first = at == 0
        stray = uniform(b, U) < torch.where(few, FEW, STRAY)[:, None]
        stray &= (unit_kind == W) & ~first & (~ends[:, None] | (at >= int(0.85 * U)))
        written = (unit_kind == W) & ~stray  # the others of such groups are questions alone among records
        parts = U // SECTION[0] + 2
        edge = whole(SECTION[0], SECTION[1] + 1, b, parts).cumsum(1)
        section = torch.searchsorted(edge, at.expand(b, U).contiguous(), right=True)
        number = torch.arange(parts, device=DEVICE).expand(b, parts)
        label = torch.where((uniform(b, parts) < REOPENED) & (number > 0), (uniform(b, parts) * number).long(), number)
        for _ in range(8):
            label = label.gather(1, label)
        label = label.gather(1, section)
        akin = (label[:, :, None] == label[:, None, :]) & (at[:, None] > at)  # [b, unit, earlier unit of its section]
        crowd = (at < EARLY) & (uniform(b, 1) < 0.5)
        hot = written & (at % HOT == 0)
        older = torch.where(akin & hot[:, None, :], uniform(b, U, U), -1.0).max(-1)
        again = written & (r < torch.where(crowd, CROWD, 0.15)) & ~hot & (older.values >= 0)
        fresh = written & ~again
        points = fresh & ~hot & (r > 0.86)
        plain = fresh & ~hot & ~points
        root = at.expand(b, U).clone()  # the unit whose key it has
        goal = torch.where(uniform(b, U) < 0.6, earlier(points), -1)
        goal = torch.where(goal < 0, earlier(plain), goal)
        points &= goal >= 0
        r = uniform(b, U)
        r = torch.where(stray & (r >= HOT_SHARE) & (r < HOT_SHARE + 0.2), 1.0, r)  # chains stand in groups of questions
        asked = torch.where(r < HOT_SHARE, earlier(hot), torch.where(r < HOT_SHARE + 0.2, earlier(points), earlier(plain)))
        asked = torch.where(asked < 0, earlier(hot), asked)
        asked = torch.where(r < HOT_SHARE / 3, earlier(hot & (at < EARLY)), asked)
        root = torch.where(again, older.indices, root)
        query = (unit_kind == Q) | stray
        root = torch.where(query, asked, root).view(b, n, UNITS)
        follows = torch.zeros_like(root, dtype=torch.bool)
        in_q = (unit_kind == Q).view(b, n, UNITS)
        for j in range(1, UNITS):  # a pointer's question goes on with what it points to
            before = root[:, :, j - 1]
            f = in_q[:, :, j - 1] & in_q[:, :, j] & points.gather(1, before)
            follows[:, :, j] = f
            root[:, :, j] = torch.where(f, goal.gather(1, before), root[:, :, j])
        root, follows = root.view(b, U), follows.view(b, U)
        is_hot = hot.gather(1, root)
        every = query & is_hot & ~follows & (uniform(b, U) < 0.4)

        k1 = KEY_0 + uniform(b, KEYS).argsort(1).gather(1, label % KEYS)
        k2 = KEY_0 + uniform(b, KEYS).argsort(1).gather(1, (akin.sum(-1) + 37 * label) % KEYS)
        value = whole(VALUE_0, VALUE_0 + VALUES, b, U, 3)
        pointed = torch.stack([k1.gather(1, goal.clamp(min=0)), k2.gather(1, goal.clamp(min=0)), torch.full_like(k1, POINTER)], -1)
        value = torch.where(points[..., None], pointed, value)
        same = (root[:, :, None] == root[:, None, :]) & written[:, None, :] & (at[:, None] > at)  # [b, question, write]
        last = torch.where(same, at.int(), -1).amax(-1).long().clamp(min=0)
        one = torch.where(same, uniform(*same.shape), -1.0).argmax(-1)
        source = torch.where(every, one, last)
        answer = value.gather(1, source[..., None].expand(-1, -1, 3))
        answer = torch.where(every[..., None] & (torch.arange(3, device=DEVICE) > 0), PAD, answer)
        self.members = None
        if members:  # first values that a question for all may be answered with [b, U, VALUES]
            ones = F.one_hot((value[..., 0] - VALUE_0).clamp(min=0), VALUES).float()
            self.members = torch.bmm(same.float(), ones) > 0
        mark = torch.where(every, ASK_ALL, torch.where(query, ASK, RECORD))
        units = torch.cat([torch.stack([mark, k1.gather(1, root), k2.gather(1, root)], -1),
                           torch.where(query[..., None], answer, value)], -1)

        # spans and their copies
        text = whole(VALUE_0, VALUE_0 + VALUES, b, n, GROUP)
        text[..., 1] = k1[:, ::UNITS]
        text[..., 2] = whole(KEY_0, KEY_0 + KEYS, b, n)
        span = earlier(kind == S)
        copied = text.gather(1, span.clamp(min=0)[..., None].expand(-1, -1, GROUP))
        text = torch.where((kind == C)[..., None], copied, text)
        text[..., 0] = torch.where(kind == C, COPY, SPAN)
        spans = (kind == S) | (kind == C)
        tokens = torch.where(spans[..., None], text, units.view(b, n, GROUP)).view(b, U * UNIT)

        weight = torch.zeros(b, U, UNIT, device=DEVICE)
        weight[..., 3:] = query[..., None].float()
        weight[..., :3] = follows[..., None].float()
        weight[..., 3] -= 0.5 * every
        weight[..., 4:] -= every[..., None].float()
        weight *= torch.where(query & is_hot, HARD, 1.0)[..., None]
        weight = weight.view(b, n, GROUP)
        weight[..., 3:] = torch.where((kind == C)[..., None], 0.2, weight[..., 3:]).clamp(min=0)
        chain = query & (follows | points.gather(1, root))
        task = torch.where(query, torch.where(every, 2, torch.where(chain, 3, torch.where(is_hot, 1, 0))), -1)
        task = torch.where(unit_kind == C, 4, task)

        shift = whole(1, GROUP + 1, b, 1)
        place = torch.arange(length, device=DEVICE) - shift  # [b, length] before padding
        inside = place.clamp(min=0)
        self.tokens = torch.where(place < 0, PAD, tokens.gather(1, inside))
        self.weight = torch.where(place < 0, 0.0, weight.view(b, -1).gather(1, inside))
        self.task, self.unit, self.inside = task, inside // UNIT, place >= 0

        def of_tokens(group, unit, none):
            x = torch.where(spans[..., None], group[..., None], unit.view(b, n, UNITS)).view(b, U)
            return torch.where(place < 0, none, x.gather(1, inside // UNIT))

        self.key = of_tokens(text[..., 1], k1.gather(1, root), PAD)
        self.asks = of_tokens(kind == C, query, False)
        source = of_tokens(span * GROUP, torch.where(query & ~follows, source * UNIT, -1), -1)
        copied = of_tokens(spans, torch.zeros_like(query), False)
        place = inside % torch.where(copied, GROUP, UNIT)
        n_blocks = length // BLOCK
        def where(offset):  # [b, U, blocks]: in which block a unit's token stands
            block = (shift + at * UNIT + offset) // BLOCK
            return F.one_hot(block.clamp(max=n_blocks), n_blocks + 1)[..., :n_blocks].float()
        self.every = torch.bmm(where(2).transpose(1, 2), torch.bmm((same & every[..., None]).float(), where(3))) > 0
        follow = (place >= 2) & (place < torch.where(copied, GROUP, UNIT) - 1) & self.asks & (source >= 0)
        self.read = torch.where(follow & (F.pad(self.weight, (-1, 1)) > 0), source + place + 1 + shift, -1)
        self.source = torch.where(place == 2, self.read, -1)


class Needles(Target):
    """Target, with losses of what chooses blocks and pages. batch: the Batch that is looked at. Left by a pass of it: of every layer masses
    [b, H, blocks of rows, blocks], the logarithms of the scores of docs/sparse.md, less the greatest; of the last, which looks answers
    up, pages [b, rows, pages], the scores of common/run/pages.h. lists: None, or (ALPHA, the first layer, a way): attention is
    that of docs/sparse.md, with "right" lists, or as many blocks "turned" round or "spread" evenly."""

    def __init__(self, config):
        super().__init__(config)
        self.batch, self.rows, self.masses, self.pages, self.lists = None, None, [], None, None

    def look(self, batch, rows=128):
        """Before a pass. rows: of a sequence at most whose questions choose pages."""
        self.batch, self.masses, self.pages = batch, [], None
        if batch is not None:
            asking = batch.source >= 0
            self.rows = (asking * (1 + uniform(*asking.shape))).topk(min(rows, asking.shape[1]), 1).indices

    def attend(self, n, i, cache):
        positions = torch.arange(n.shape[1], device=n.device)
        q, _ = self.queries(n, i, positions)
        k, v = self.heads(n, "k", i, self.G, positions), self.values(n, i)
        listed = self.lists is not None and i >= self.lists[1]
        mass = self.block_masses(q, k) if listed or self.batch is not None else None
        if self.batch is not None:
            self.masses.append(mass)
            scores = self.page_scores(q, k)
            self.pages = scores if self.pages is None else self.pages.detach() + scores
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        bias = None
        if listed:
            keep = self.listed(mass.detach(), self.lists[0], self.lists[2])
            k, v, bias = self.with_means(k, v, keep)
        k, v = (y.repeat_interleave(self.H // self.G, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None).transpose(1, 2)
        return F.linear(y.flatten(2), self.o[self.row[i]].to(n.dtype))

    def block_masses(self, q, k):
        """log of the sum over a block's rows that see the whole of another one of exp(q . mean k), less that of the best; below -1000 where
        none does."""
        n = q.shape[1] // BLOCK
        rows = q[:, :n * BLOCK].transpose(1, 2).float() * self.D ** -0.5
        means = k[:, :n * BLOCK].unflatten(1, (n, BLOCK)).float().mean(2).transpose(1, 2).repeat_interleave(self.H // self.G, 1)
        at = torch.arange(n, device=q.device)
        hidden = (at > at[:, None])[:, None, :].repeat(1, BLOCK, 1)
        hidden[at, :-1, at] = True
        mass = (rows @ means.transpose(2, 3)).unflatten(2, (n, BLOCK)).masked_fill(hidden, -1e4).logsumexp(3)
        return mass - mass.amax(-1, keepdim=True)

    def listed(self, mass, alpha, way="right"):
        """-> [b, G, blocks of rows, blocks]: what is kept"""
        n = mass.shape[-1]
        at = torch.arange(n, device=mass.device)
        past, far = at <= at[:, None], far_blocks(n)
        mass = mass.unflatten(1, (self.G, -1)).amax(2)
        keep = ((mass >= math.log(alpha)) | ~far) & past
        count = keep.sum(-1, keepdim=True)
        if way == "turned":
            order = mass.masked_fill(~far, -1e6).masked_fill(~past, 1e6)
            keep = order.argsort(-1).argsort(-1) < count
        if way == "spread":
            free = far.sum(-1, keepdim=True)
            want, j, most = count - (at[:, None] + 1 - free), at - 2, free.clamp(min=1)
            keep = (~far & past) | (far & ((j + 1) * want // most > j * want // most))
        return keep

    def with_means(self, k, v, keep):
        """k, v [b, G, T, D] -> the same with the means of blocks behind them, and what is added to the scores [b, H, T, T + blocks]."""
        n, T = keep.shape[-1], k.shape[2]
        at = torch.arange(T, device=k.device)
        means = (torch.where(keep | (at[:n] > at[:n, None]), -torch.inf, math.log(BLOCK))).repeat_interleave(BLOCK, 2)
        seen = keep.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3) & (at <= at[:, None])
        bias = torch.cat([torch.where(seen, 0.0, -torch.inf).to(k.dtype), means.to(k.dtype)], -1)
        k, v = (torch.cat([y, y.unflatten(2, (n, BLOCK)).float().mean(3).to(y.dtype)], 2) for y in (k, v))
        return k, v, bias.repeat_interleave(self.H // self.G, 1)

    def page_scores(self, q, k):
        """The cosine of chosen rows' queries and pages' mean keys, the best of a group's heads, added over groups."""
        n = k.shape[1] // PAGE
        means = F.normalize(k[:, :n * PAGE].unflatten(1, (n, PAGE)).float().mean(2), dim=-1)
        mine = q.gather(1, self.rows[:, :, None, None].expand(-1, -1, self.H, self.D)).float()
        mine = F.normalize(mine, dim=-1).unflatten(2, (self.G, self.H // self.G))
        return torch.einsum("brgjd,bpgd->brgjp", mine, means).amax(3).sum(2)

    def wanted(self):
        """[b, blocks of rows, blocks]: what some answer is read of"""
        n = self.batch.key.shape[1] // BLOCK
        far, read = far_blocks(n), self.batch.read[:, :n * BLOCK]
        pair = torch.arange(n * BLOCK, device=DEVICE) // BLOCK * n + read // BLOCK
        found = torch.zeros(len(read), n * n + 1, dtype=torch.bool, device=DEVICE)
        return (found.scatter(1, torch.where(read >= 0, pair, n * n), True)[:, :-1].unflatten(1, (n, n)) | self.batch.every) & far

    def unwanted(self):
        """The same without a record of any section that the rows ask for; and whether they ask [b, blocks of rows, 1]."""
        n, b = self.batch.key.shape[1] // BLOCK, len(self.batch.key)
        sequence, block = torch.arange(b, device=DEVICE)[:, None], (torch.arange(n * BLOCK, device=DEVICE) // BLOCK).expand(b, -1)
        key, asks = self.batch.key[:, :n * BLOCK], self.batch.asks[:, :n * BLOCK]
        has = torch.zeros(b, n, VALUE_0, device=DEVICE)
        wants = has.clone()
        has[sequence, block, key] = 1.0
        wants[sequence, block, torch.where(asks, key, PAD)] = 1.0
        wants[..., PAD] = 0.0
        return (torch.bmm(wants, has.transpose(1, 2)) == 0) & far_blocks(n), wants.sum(-1, keepdim=True) > 0

    def block_losses(self):
        """Of the last layer, how far blocks that answers are read of stand below what keeps them, of each group the best head; and how far
        other sections' stand above what leaves them out. Blocks of rows with few questions, which are what lists are for, weigh most.
        Of the other layers, which look at what is near: the second of all."""
        mass, wanted = self.masses[-1], self.wanted()
        unwanted, asks = self.unwanted()
        count, others = wanted.sum(-1, keepdim=True), unwanted.sum(-1, keepdim=True)
        weight = torch.where(asks, torch.where(count > 0, 1 / count.clamp(min=1), 0.3), 0.05)
        short = (-KEEP - mass.unflatten(1, (self.G, -1)).amax(2)).clamp(min=0).mean(1)
        over = (mass + LEAVE).clamp(min=0).mean(1)
        some, any_other = weight * (count > 0), weight * (others > 0)
        lack = (some * short * wanted / count.clamp(min=1)).sum() / (some.sum() + 1e-3)
        much = (any_other * over * unwanted / others.clamp(min=1)).sum() / (any_other.sum() + 1e-3)
        far = far_blocks(mass.shape[-1])
        near = sum(((x + LEAVE - 0.4).clamp(min=0) * far).sum((2, 3)).mean() / (far.sum() + 1) for x in self.masses[:-1])
        return lack, much, near

    def choosable(self):
        """-> where the chosen rows' answers stand, as pages [b, rows]; pages that may be left out then [b, rows, pages]; rows that ask for
        such a one [b, rows]"""
        source = self.batch.source.gather(1, self.rows)
        page, full = torch.arange(self.batch.key.shape[1] // PAGE, device=DEVICE), self.rows[..., None] // PAGE
        may = (page > 0) & (page < full - TAIL)
        goal = (source // PAGE).clamp(min=0)
        return goal, may, (source >= 0) & may.gather(2, goal[..., None]).squeeze(-1)

    def page_loss(self):
        goal, may, valid = self.choosable()
        scores = (self.pages / SHARP).masked_fill(~may, -1e4)
        loss = F.cross_entropy(scores.flatten(0, 1), goal.flatten(), reduction="none")
        return (loss * valid.flatten()).sum() / (valid.sum() + 1)


def far_blocks(n):
    """[blocks of rows, blocks] that lists may leave out"""
    at = torch.arange(n, device=DEVICE)
    return (at > 1) & (at < at[:, None] - 3)


def dtype():
    return torch.float32 if TINY else torch.bfloat16


def answers_loss(model, batch, blocks, pages=0.03, lists=None):
    tokens, weight = batch.tokens, batch.weight[:, 1:]
    model.look(batch if blocks and tokens.shape[1] > 6 * BLOCK else None)
    model.lists = lists
    rows = model(tokens, dtype=dtype())[0]
    model.lists = None
    choices = [*model.block_losses(), model.page_loss()] if model.batch else []
    model.choices = [x.detach() for x in choices]
    model.look(None)
    asked = weight > 0
    logits = model.logits(rows[:, :-1][asked]).float()
    goal, w = tokens[:, 1:][asked], weight[asked]
    right = logits.detach().argmax(-1) == goal
    loss = (F.cross_entropy(logits, goal, reduction="none") * w).sum() / w.sum()
    sure = w >= 1
    exact = right[sure].float().mean()
    return loss + sum(w * x for w, x in zip((2 * blocks, blocks, blocks, pages), choices)), loss.detach(), exact


@torch.no_grad()
def measure(model, length, sequences, few=None, lists=None):
    """-> {task: (share of questions answered exactly, questions)}: what the suite counts, a unit or a span each."""
    right, count = torch.zeros(len(TASKS)), torch.zeros(len(TASKS))
    at_once = 1 if TINY else max(1, 65536 // length)
    for a in range(0, sequences, at_once):
        b = min(at_once, sequences - a)
        batch = Batch(b, length, torch.ones(b, dtype=torch.bool, device=DEVICE), members=True, few=few)
        model.lists = lists
        rows = model(batch.tokens, dtype=dtype())[0]
        model.lists = None
        weight, U = batch.weight[:, 1:], batch.task.shape[1]
        unit = batch.unit[:, 1:]
        logits = model.logits(rows[:, :-1]).float()
        wrong = (logits.argmax(-1) != batch.tokens[:, 1:]) & (weight > 0)
        seen = torch.zeros(b, U, device=DEVICE).scatter_add_(1, unit, batch.inside[:, 1:].float()) == UNIT
        bad = torch.zeros(b, U, device=DEVICE).scatter_add_(1, unit, wrong.float()) > 0
        every = batch.task.gather(1, unit) == 2  # every value above all else
        first = every & (weight > 0)
        chosen = logits[first]
        inside = F.pad(batch.members[torch.arange(b, device=DEVICE)[:, None].expand_as(unit)[first], unit[first]], (VALUE_0, 0))
        lowest = chosen.masked_fill(~inside, torch.inf).amin(-1)
        bad[torch.arange(b, device=DEVICE)[:, None].expand_as(unit)[first], unit[first]] = \
            lowest <= chosen.masked_fill(inside, -torch.inf).amax(-1)
        copies = (batch.task == 4).unflatten(1, (-1, UNITS))
        for t in range(4):
            mine = (batch.task == t) & seen
            right[t] += (mine & ~bad).sum().item()
            count[t] += mine.sum().item()
        spans = copies[..., 0] & seen.unflatten(1, (-1, UNITS)).all(-1)
        right[4] += (spans & ~bad.unflatten(1, (-1, UNITS)).any(-1)).sum().item()
        count[4] += spans.sum().item()
    return {name: (round((right[t] / max(1, count[t])).item(), 4), int(count[t])) for t, name in enumerate(TASKS)}


@torch.no_grad()
def measure_choices(model, length, sequences, alphas=(0.1, 0.2, 0.3)):
    """-> of sequences with few questions: by ALPHA the density of each layer's lists; how many blocks are kept for blocks of rows that read of
    far ones, and for how many questions the lists of all KV heads have the block of the answer, in all and by task; how many pages
    with an answer are among the best 10 of those that a pool may leave."""
    A, L, tasks = len(alphas), model.L, len(TASKS)
    kept, blocks, found, of = torch.zeros(A, L), torch.zeros(A), torch.zeros(A, tasks), torch.zeros(tasks)
    all_blocks, tiles_seen, seen, hits, asked = 0, 0, 0, 0, 0
    for _ in range(sequences):
        batch = Batch(1, length, torch.ones(1, dtype=torch.bool, device=DEVICE), few=True)
        model.look(batch)
        model(batch.tokens, dtype=dtype())
        wanted = model.wanted()[0]
        at = torch.arange(len(wanted), device=DEVICE)
        past, tiles = at <= at[:, None], wanted.any(1)
        seen += past.sum().item() * model.G
        all_blocks += past[tiles].sum().item() * model.G
        tiles_seen += tiles.sum().item() * model.G
        where = (batch.source[0] >= 0).nonzero()[:, 0]
        where = where[wanted[where // BLOCK, batch.source[0, where] // BLOCK]]
        task, tile, block = batch.task[0, batch.unit[0, where]].cpu(), where // BLOCK, batch.source[0, where] // BLOCK
        of += F.one_hot(task, tasks).sum(0)
        for a, alpha in enumerate(alphas):
            for i in range(L):
                keep = model.listed(model.masses[i], alpha)[0]
                kept[a, i] += keep.sum().item()
            blocks[a] += keep[:, tiles].sum().item()
            found[a] += (F.one_hot(task, tasks) * keep[:, tile, block].all(0).cpu()[:, None]).sum(0)
        goal, may, valid = model.choosable()
        scores = model.pages.masked_fill(~may, -1e4)
        rank = (scores > scores.gather(2, goal[..., None])).sum(-1)
        hits, asked = hits + ((rank < 10) & valid).sum().item(), asked + valid.sum().item()
    model.look(None)

    def share(x, y):
        return round(float(x) / max(1, float(y)), 3)
    out = {str(alpha): {"density": [share(x, seen) for x in kept[a]], "kept": share(blocks[a], tiles_seen),
                        "found": share(found[a].sum(), of.sum()), **{t: share(found[a, j], of[j]) for j, t in enumerate(TASKS)}}
           for a, alpha in enumerate(alphas)}
    return {**out, "seen": share(all_blocks, tiles_seen), "pages": share(hits, asked)}


def examine(model, length, sequences):
    """Exact answers, few questions a sequence: densely, and with lists of 0.1 in every layer, right, turned round and spread. -> what a state
    is worth."""
    ways = {"dense": None, **{way: (0.1, 0, way) for way in ("right", "turned", "spread")}}
    worth = {}
    for name, lists in ways.items():
        found = measure(model, length, sequences, True, lists)
        worth[name] = [x for x, n in found.values() if n]
        log("  %6s at %d:" % (name, length), ", ".join("%s %.3f of %d" % (t, *x) for t, x in found.items()))
    log("  lists at %d:" % length, json.dumps(measure_choices(model, length, min(sequences, 32))))
    mean = {k: sum(v) / len(v) for k, v in worth.items()}
    return min(worth["dense"]) + min(worth["right"]) + mean["dense"] + mean["right"] - mean["turned"] - mean["spread"]


def save(model, folder):
    model.save(folder)
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(GENERATION, f, indent=2)
        f.write("\n")


# tokens a sequence, sequences, share of the time at which it ends at the latest, exact answers at which it ends before
STAGES = [(384, 192, 0.14, 0.97), (1024, 64, 0.30, 0.985), (4096, 16, 0.72, 2.0), (16384, 4, 1.0, 2.0)]
TINY_STAGES = [(384, 4, 0.6, 2.0), (1024, 2, 1.0, 2.0)]
STATES = 6  # how often a run that goes on looks at what it has


def train(model, seconds, blocks):
    optimiser = Optimiser(model, 0.02, 4e-3, 0.01)
    stages = TINY_STAGES if TINY else STAGES
    synchronize()
    start, count, stage, smooth, reported = time.time(), 0, 0, 0.0, -1
    progress, began = 0.0, 0
    while True:
        if count % 8 == 0:
            synchronize()
            progress = (time.time() - start) / seconds
            if progress >= 1:
                break
            while stage + 1 < len(stages) and (progress > stages[stage][2] or (count - began > 300 and smooth > stages[stage][3])):
                log("length", stages[stage][0], "ends at step", count, "%.0f%%" % (100 * progress), "exact %.3f" % smooth)
                stage, began, smooth = stage + 1, count, 0.0
        length, b = stages[stage][:2]
        if stage == len(stages) - 1 and count % 3 and not TINY:  # the longest are a third of the last steps
            length, b = stages[stage - 1][:2]
        ramp = min(1.0, max(0.0, (progress - 0.35) / 0.15)) * blocks * (smooth > 0.9)
        total, loss, exact = answers_loss(model, Batch(b, length, uniform(b) < 0.5), ramp)
        step(model, optimiser, total, min(1.0, (count + 1) / 100) * min(1.0, (1 - progress) / 0.7))
        count += 1
        smooth = exact.item() if smooth == 0 else 0.97 * smooth + 0.03 * exact.item() if count % 4 == 0 else smooth
        if int(progress * 40) > reported:
            reported = int(progress * 40)
            report_step(model, count, progress, length, loss, exact)
    log(count, "steps, %.1f ms each" % (1e3 * seconds / max(1, count)))
    return count


def go_on(model, seconds, blocks, rate, states):
    """From a model that answers densely: the same, and its lists. seconds: with what is measured between. What it has is left in the folder
    states, the last and the best. -> steps."""
    optimiser = Optimiser(model, rate, rate * 0.19, 0.01)
    synchronize()
    start, count, progress, reported, seen, best = time.time(), 0, 0.0, -1, 0, -1e9
    while True:
        if count % 8 == 0 or TINY:
            synchronize()
            progress = (time.time() - start) / seconds
            if int(progress * STATES) > seen or progress >= 1:
                seen = int(progress * STATES)
                keep_state(model, states, "last")
                worth = examine(model, 2048 if TINY else 4096, 2 if TINY else 32)
                log("  worth %.3f" % worth)
                if worth > best:
                    best = worth
                    keep_state(model, states, "best")
            if progress >= 1:
                break
        length, b = (2048, 1) if TINY else (1024, 64) if count % 5 == 4 else (16384, 4) if count % 10 == 2 and progress > 0.3 else (4096, 16)
        lists = None
        if progress > 0.3 and count % 2 and length <= 4096:
            lists = (0.08 * 2.5 ** random.random(), random.choice((0, model.L - 1, model.L - 1)), "right")
        batch = Batch(b, length, uniform(b) < 0.7)
        weight = blocks * min(1.0, 0.1 + progress / 0.06) * (1.0 if progress < 0.7 else 0.5)
        total, loss, exact = answers_loss(model, batch, weight, lists=lists)
        step(model, optimiser, total, min(1.0, (count + 1) / 100) * min(1.0, (1 - progress) / 0.6))
        count += 1
        if int(progress * 40) > reported:
            reported = int(progress * 40)
            report_step(model, count, progress, length, loss, exact)
    log(count, "steps, %.1f ms each" % (1e3 * seconds / max(1, count)))
    return count


def step(model, optimiser, total, scale):
    total.backward()
    for p in model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    optimiser.step(scale)


def report_step(model, count, progress, length, loss, exact):
    log("step %d, %.0f%%, length %d, loss %.4f, exact %.4f, wanted, unwanted, near, pages %s" % (
        count, 100 * progress, length, loss.item(), exact.item(), " ".join("%.3f" % x.item() for x in model.choices)))


def keep_state(model, folder, name):
    if folder:
        os.makedirs(folder, exist_ok=True)
        save_file(model.files(), os.path.join(folder, "needles-%s.safetensors" % name), metadata={"format": "pt"})


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out")
    arguments.add_argument("--from", dest="start")
    arguments.add_argument("--seconds", type=float, default=420)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--blocks", type=float, default=0.3, help="weight of the losses of blocks' scores (0: without)")
    arguments.add_argument("--rate", type=float, default=0.008, help="of matrices, with --from")
    arguments.add_argument("--states", help="a folder for what --from has on its way")
    arguments.add_argument("--check", action="store_true")
    o = arguments.parse_args()
    torch.manual_seed(o.seed)
    random.seed(o.seed)
    torch.set_float32_matmul_precision("high")
    global HOT_SHARE
    HOT_SHARE = 0.6 if o.start else HOT_SHARE
    model = Needles.load(o.start, DEVICE).requires_grad_(True) if o.start else Needles(CONFIG).to(DEVICE)
    log("%.3f M parameters" % (sum(p.numel() for p in model.parameters()) / 1e6))
    steps = go_on(model, o.seconds, o.blocks, o.rate, o.states) if o.start else train(model, o.seconds, o.blocks)
    save(model, o.out)
    model = Needles.load(o.out, DEVICE)  # as the file rounds it
    report = {"seconds": o.seconds, "steps": steps, "blocks": o.blocks, "seed": o.seed, "exact": {}, "choices": {}}
    for length in (1024, 2048) if TINY else (1024, 4096, 16384):
        found = measure(model, length, 2 if o.check else max(8, 262144 // length))
        report["exact"][str(length)] = found
        report["choices"][str(length)] = choices = measure_choices(model, length, 2 if o.check else 32)
        log("%6d tokens:" % length, ", ".join("%s %.4f of %d" % (name, *x) for name, x in found.items()), "choices", choices)
    examine(model, 2048 if TINY else 4096, 2 if o.check else 96)
    with open(os.path.join(o.out, "report.json"), "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
