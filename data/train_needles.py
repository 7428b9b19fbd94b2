#!/usr/bin/env python3
"""Train the small model of the needle suite (dflash-bench needles): Qwen3, heads of 128, 512 raw token ids, 1.9 M parameters.

usage: train_needles.py OUT_DIR [--from DIR] [--seconds N] [--seed N] [--blocks C] [--check]

Leaves OUT_DIR/config.json, generation_config.json, model.safetensors (bf16, 3.8 MB; dflash-convert takes the folder) and
report.json; prints exact answers by task at 1,024, 4,096 and 16,384 tokens. The budget is for training alone. --check: a few
steps of everything on tiny sizes. --from: go on from what an earlier run left, at 4,096 and 16,384 tokens, at a smaller rate and with
more of what is right least often. Needs torch, safetensors; one GPU.

A sequence is made of groups of 72 tokens behind a padding of 1 to 72. Most groups are 12 units of 6 tokens:

    . k1 k2 v1 v2 v3     a record: what is written under the key k1 k2. k1 is the same for some 32 units (a section)
    . k1 k2 j1 j2 &      a record that points to another key
    ? k1 k2 v1 v2 v3     a question and its answer: what was written last under the key
    ? k1 k2 j1 j2 & ? j1 j2 v1 v2 v3   the same of a pointer: it is followed
    ! k1 k2 v1 - -       one of the first values that were ever written under the key, each as likely

and others copies: # k1 k2 and 69 values; later @ k1 k2 and the same 69 values. The loss is that of the answers. Half of the
sequences have questions everywhere, the others at their end, as the suite's have. Lengths grow as the answers get right.
"""
import argparse
import json
import os
import random
import time

import torch
import torch.nn.functional as F

from pair_model import Target
from train_pair import DEVICE, TINY, Optimiser, log, synchronize

END, PAD, RECORD, ASK, ASK_ALL, POINTER, SPAN, COPY = range(8)
KEY_0, KEYS, VALUE_0, VALUES = 16, 240, 256, 256
UNIT, UNITS, GROUP, BLOCK = 6, 12, 72, 128
KEEP = 1.5    # blocks that answers are read of score exp(-KEEP) of the best at least: 0.22, for lists made with 0.1
HOT = 16      # every so many keys are written again
STRAY = 0.06  # of the records of a group: a question in its place
HOT_SHARE = 0.3  # of the questions are for these
SECTION = 32  # units that share k1, in the mean
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


def groups(b, n, ends):
    """The kinds of n groups [b, n]; rows of ends [b] have questions at their end alone."""
    r, place = uniform(b, n), torch.arange(n, device=DEVICE)
    tail = place >= min(n - 2, int(0.85 * n))
    kind = torch.where(r < 0.5, W, torch.where(r < 0.62, S, torch.where(r < 0.9, Q, C)))
    late = torch.where(tail, torch.where(r < 0.7, Q, C), torch.where(r < 0.85, W, S))
    kind = torch.where(ends[:, None], late, kind)
    kind[:, 0] = W
    spans = (kind == S).long().cumsum(1)
    return torch.where((kind == C) & (spans == 0), Q, kind)


class Batch:
    """tokens [b, length]; weight [b, length] of predicting each token; of every unit its task [b, U] (-1: none), and where its
    tokens are."""

    def __init__(self, b, length, ends, members=False):
        n = -(-length // GROUP)
        U = n * UNITS
        kind = groups(b, n, ends)
        unit_kind = kind.repeat_interleave(UNITS, 1)
        at = torch.arange(U, device=DEVICE)
        r = uniform(b, U)
        first = at == 0
        stray = (unit_kind == W) & (uniform(b, U) < STRAY) & ~first & (~ends[:, None] | (at >= int(0.85 * U)))
        written = (unit_kind == W) & ~stray  # the others of such groups are questions alone among records
        again = written & (r < 0.15) & ~first
        fresh = written & ~again
        hot = fresh & ((fresh.long().cumsum(1) - 1) % HOT == 0)
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
        root = torch.where(again, earlier(hot), root)
        query = (unit_kind == Q) | stray
        root = torch.where(query, asked, root).view(b, n, UNITS)
        follows = torch.zeros_like(root, dtype=torch.bool)
        in_q = kind == Q
        for j in range(1, UNITS):  # a pointer's question goes on with what it points to
            before = root[:, :, j - 1]
            f = in_q & points.gather(1, before)
            follows[:, :, j] = f
            root[:, :, j] = torch.where(f, goal.gather(1, before), root[:, :, j])
        root, follows = root.view(b, U), follows.view(b, U)
        is_hot = hot.gather(1, root)
        every = query & is_hot & ~follows & (uniform(b, U) < 0.4)

        section = (uniform(b, U) < 1 / SECTION).long().cumsum(1)
        k1 = KEY_0 + uniform(b, KEYS).argsort(1).gather(1, section % KEYS)
        k2 = KEY_0 + uniform(b, KEYS).argsort(1)[:, at % KEYS]
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


class Needles(Target):
    """Target, with a second loss: the means of a block's keys shall say where attention goes. tile: the block whose rows are looked
    at, wanted: their weight [b, 128]; losses are left in block_losses."""

    def __init__(self, config):
        super().__init__(config)
        self.tile, self.wanted, self.block_losses = None, None, []

    def attend(self, n, i, cache):
        positions = torch.arange(n.shape[1], device=n.device)
        q, _ = self.queries(n, i, positions)
        k, v = self.heads(n, "k", i, self.G, positions), self.values(n, i)
        if self.tile is not None:
            self.block_losses.append(self.block_loss(q, k))
        k, v = (y.transpose(1, 2).repeat_interleave(self.H // self.G, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)
        return F.linear(y.flatten(2), self.o[self.row[i]].to(n.dtype))

    def block_loss(self, q, k):
        """The divergence of softmax over blocks of log sum over rows of exp(q . mean k) from where the rows' weights really lie, and how
        far blocks that answers are read of stand below what keeps them."""
        m, end = self.tile, (self.tile + 1) * BLOCK
        rows = q[:, m * BLOCK:end].transpose(1, 2).float() * self.D ** -0.5
        keys = k[:, :end].transpose(1, 2).repeat_interleave(self.H // self.G, 1).float()
        with torch.no_grad():
            scores = rows @ keys.transpose(2, 3)
            ahead = torch.arange(end, device=q.device) > torch.arange(m * BLOCK, end, device=q.device)[:, None]
            mass = scores.masked_fill(ahead, -torch.inf).softmax(-1).unflatten(-1, (m + 1, BLOCK)).sum(-1)  # [b, H, rows, blocks]
            share = self.wanted / self.wanted.sum(1, keepdim=True).clamp(min=1e-6) + 0.5 / BLOCK
            goal = (mass * share[:, None, :, None]).sum(2)
            goal = goal / goal.sum(-1, keepdim=True)
        means = rows @ keys.unflatten(2, (m + 1, BLOCK)).mean(3).transpose(2, 3)
        hidden = torch.zeros(BLOCK, m + 1, dtype=torch.bool, device=q.device)
        hidden[:-1, m] = True
        guess = means.masked_fill(hidden, -torch.inf).logsumexp(2).log_softmax(-1)
        spread = (goal * (goal.clamp(min=1e-9).log() - guess)).sum(-1).mean()
        asks = (self.wanted > 0)[:, None, :, None]
        needed = torch.where(asks, mass, 0.0).amax(2) > 0.15  # what some answer is read of
        needed[..., :2] = False
        needed[..., m - 3:] = False
        short = (guess.amax(-1, keepdim=True) - KEEP - guess).clamp(min=0)
        return spread + 4 * (short * needed).sum() / (needed.sum() + 1)


def dtype():
    return torch.float32 if TINY else torch.bfloat16


def answers_loss(model, batch, blocks):
    tokens, weight = batch.tokens, batch.weight[:, 1:]
    model.block_losses = []
    model.tile = None
    n = tokens.shape[1] // BLOCK
    if blocks and n > 6:
        model.tile = random.randrange(max(6, n // 4), n) if random.random() < 0.5 else n - 1
        model.wanted = F.pad(weight, (0, 1))[:, model.tile * BLOCK:(model.tile + 1) * BLOCK]
    rows = model(tokens, dtype=dtype())[0]
    model.tile = None
    asked = weight > 0
    logits = model.logits(rows[:, :-1][asked]).float()
    goal, w = tokens[:, 1:][asked], weight[asked]
    right = logits.detach().argmax(-1) == goal
    loss = (F.cross_entropy(logits, goal, reduction="none") * w).sum() / w.sum()
    sure = w == 1
    exact = right[sure].float().mean()
    return loss + (blocks * sum(model.block_losses) if blocks and model.block_losses else 0), loss.detach(), exact


@torch.no_grad()
def measure(model, length, sequences):
    """-> {task: (share of questions answered exactly, questions)}: what the suite counts, a unit or a span each."""
    right, count = torch.zeros(len(TASKS)), torch.zeros(len(TASKS))
    at_once = 1 if TINY else max(1, 65536 // length)
    for a in range(0, sequences, at_once):
        b = min(at_once, sequences - a)
        batch = Batch(b, length, torch.ones(b, dtype=torch.bool, device=DEVICE), members=True)
        rows = model(batch.tokens, dtype=dtype())[0]
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


def save(model, folder):
    model.save(folder)
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(GENERATION, f, indent=2)
        f.write("\n")


# tokens a sequence, sequences, share of the time at which it ends at the latest, exact answers at which it ends before
STAGES = [(384, 192, 0.14, 0.97), (1024, 64, 0.30, 0.985), (4096, 16, 0.72, 2.0), (16384, 4, 1.0, 2.0)]
FURTHER = [(4096, 16, 0.3, 2.0), (16384, 4, 1.0, 2.0)]  # with --from
TINY_STAGES = [(384, 4, 0.6, 2.0), (1024, 2, 1.0, 2.0)]


def train(model, seconds, blocks, further):
    optimiser = Optimiser(model, 0.008 if further else 0.02, 1.5e-3 if further else 4e-3, 0.01)
    stages = TINY_STAGES if TINY else FURTHER if further else STAGES
    synchronize()
    start, count, stage, smooth, reported, best, kept = time.time(), 0, 0, 0.0, -1, -1.0, None
    progress, began, aside = 0.0, 0, 0.0
    while True:
        if count % 8 == 0:
            synchronize()
            progress = (time.time() - start - aside) / seconds
            if progress >= 1:
                break
            while stage + 1 < len(stages) and (progress > stages[stage][2] or (count - began > 300 and smooth > stages[stage][3])):
                log("length", stages[stage][0], "ends at step", count, "%.0f%%" % (100 * progress), "exact %.3f" % smooth)
                stage, began, smooth = stage + 1, count, 0.0
        length, b = stages[stage][:2]
        if stage == len(stages) - 1 and count % 3 and not TINY:  # the longest are a third of the last steps
            length, b = stages[stage - 1][:2]
        ramp = min(1.0, 1.0 if further else max(0.0, (progress - 0.35) / 0.15), 0.3 + max(0.0, (1 - progress) / 0.4)) * blocks * (further or smooth > 0.9)
        batch = Batch(b, length, uniform(b) < 0.5)
        total, loss, exact = answers_loss(model, batch, ramp)
        total.backward()
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimiser.step(min(1.0, (count + 1) / 100) * min(1.0, (1 - progress) / 0.7))
        count += 1
        smooth = exact.item() if smooth == 0 else 0.97 * smooth + 0.03 * exact.item() if count % 4 == 0 else smooth
        if int(progress * 40) > reported:
            reported = int(progress * 40)
            means = [x.item() for x in model.block_losses]
            log("step %d, %.0f%%, length %d, loss %.4f, exact %.4f, blocks %s" % (
                count, 100 * progress, length, loss.item(), exact.item(), " ".join("%.2f" % x for x in means)))
            if reported % 4 == 3 and progress > 0.5:
                pause = time.time()
                found = measure(model, 1024 if TINY else 4096, 2 if TINY else 32)
                score = min(x for x, n in found.values() if n)
                log("  at 4,096:", found)
                if score > best:
                    best, kept = score, {k: v.detach().clone() for k, v in model.state_dict().items()}
                aside += time.time() - pause
    log(count, "steps, %.1f ms each" % (1e3 * seconds / max(1, count)))
    found = measure(model, 1024 if TINY else 4096, 2 if TINY else 32)
    if kept and min(x for x, n in found.values() if n) < best - 0.005:
        log("an earlier state was better:", best)
        model.load_state_dict(kept)
    return count


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out")
    arguments.add_argument("--from", dest="start")
    arguments.add_argument("--seconds", type=float, default=420)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--blocks", type=float, default=0.05, help="weight of the loss of blocks' means (0: without)")
    arguments.add_argument("--check", action="store_true")
    o = arguments.parse_args()
    torch.manual_seed(o.seed)
    random.seed(o.seed)
    torch.set_float32_matmul_precision("high")
    global HOT_SHARE
    HOT_SHARE = 0.6 if o.start else HOT_SHARE
    model = Needles.load(o.start, DEVICE).requires_grad_(True) if o.start else Needles(CONFIG).to(DEVICE)
    log("%.3f M parameters" % (sum(p.numel() for p in model.parameters()) / 1e6))
    steps = train(model, o.seconds, o.blocks, o.start is not None)
    save(model, o.out)
    model = Needles.load(o.out, DEVICE)  # as the file rounds it
    report = {"seconds": o.seconds, "steps": steps, "blocks": o.blocks, "seed": o.seed, "exact": {}}
    for length in (1024, 2048) if TINY else (1024, 4096, 16384):
        found = measure(model, length, 2 if o.check else max(8, 262144 // length))
        report["exact"][str(length)] = found
        log("%6d tokens:" % length, ", ".join("%s %.4f of %d" % (name, *x) for name, x in found.items()))
    with open(os.path.join(o.out, "report.json"), "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
