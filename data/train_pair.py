#!/usr/bin/env python3
"""Train a small pair: a target of 7 to 8 M parameters, Qwen3 or Qwen3.5 (hybrid), and drafters for it.

usage: train_pair.py tokens CORPUS_DIR WORK_DIR                     train the tokenizer, encode the corpus of make_corpus.py (no GPU)
       train_pair.py target WORK_DIR [--family qwen3|qwen35]        T_TARGET seconds
       train_pair.py prompts WORK_DIR                               optional: prompts for generate, and held-out ones (no GPU)
       train_pair.py generate WORK_DIR                              T_GENERATE seconds: streams that the target writes itself
       train_pair.py drafter WORK_DIR [--kind dflash|dflash2|dspark|mtp] [--layers N] [--ffn N] [--head N] [--taps N,N,...]
                     [--name NAME]                                  T_DRAFTER seconds; leaves WORK_DIR/NAME, by default drafter

Run in this order; each stage leaves its result in WORK_DIR, so one can be run again. The budgets are environment variables and
exclude compilation; TEXT is the number of bytes of training text that tokens takes of either kind (all by default), PROMPTS the
number of prompts. A tokenizer.json that lies in WORK_DIR is used instead of a new one. Where prompts.npz lies there, generate
needs no tokens and continues those prompts, each once, STREAMS of them at most. drafter stops at DEADLINE (seconds of the epoch)
whatever T_DRAFTER says; COMPILE=0 does without torch.compile. The device is cuda where there is one, else the CPU (with budgets of
seconds: a check of the script). Then measure_pair.py measures what came out. Needs torch, numpy, safetensors; tokens needs
tokenizers too.
"""
import argparse
import json
import os
import random
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

from pair_heads import KINDS
from pair_model import NOT_MATRICES, Generator, HybridTarget, Target, load_target

VOCABULARY, END_OF_TEXT, MASK = 4096, 0, 1
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TARGET = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": VOCABULARY, "hidden_size": 256,
    "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 8192, "attention_bias": False, "attention_dropout": 0.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "layer_types": ["full_attention"] * 8, "sliding_window": None,
    "use_sliding_window": False, "initializer_range": 0.02, "tie_word_embeddings": True, "use_cache": True,
    "bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT}
HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16", "vocab_size": VOCABULARY,
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 8192, "attention_bias": False,
    "attention_dropout": 0.0, "attn_output_gate": True, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 64,
    "mamba_ssm_dtype": "float32", "initializer_range": 0.02, "tie_word_embeddings": True, "use_cache": True,
    "bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT}
FAMILIES = {"qwen3": (Target, TARGET), "qwen35": (HybridTarget, HYBRID)}
TAPS = {"qwen3": [1, 2, 4, 5, 6], "qwen3_5_text": [1, 3, 4, 5, 6]}  # 3 is the hybrid's first layer of attention
DRAFTER = {  # a head size of its own, which must never be taken from the target
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": VOCABULARY, "hidden_size": 256,
    "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 8192, "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "layer_types": ["sliding_attention"] + ["full_attention"] * 3,
    "use_sliding_window": True, "sliding_window": 256, "tie_word_embeddings": False, "block_size": 8, "num_target_layers": 8,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": None}}
DFLASH2 = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 32, "selector_top_k": 8}
DSPARK = {"markov_rank": 32, "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True}
GENERATION = {"bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT}

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TINY = DEVICE.type == "cpu"  # batch sizes for a check of the script
START = time.time()


def log(*words):
    print("[%6.1f]" % (time.time() - START), *words, flush=True)


def budget(name, default):
    return float(os.environ.get(name, default))


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


# ---- tokens ----------------------------------------------------------------------------------------------------------

def make_tokenizer(texts):
    """Byte-level BPE with Qwen2's pre-tokenizer and NFC."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>", "<|mask|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def balanced_sample(documents, size=25_000_000):
    """Texts of as much of either kind, about size characters each."""
    chosen = []
    for kind in ("python", "manual"):
        texts = [d[2] for d in documents if d[0] == kind]
        random.shuffle(texts)
        total = 0
        while texts and total <= size:
            chosen.append(texts.pop())
            total += len(chosen[-1])
    return chosen


def stage_tokens(corpus, work):
    """WORK_DIR/tokenizer.json, unless it is there; WORK_DIR/tokens.npz: per kind and split the ids of all files, each ended by
    END_OF_TEXT, and where each file starts."""
    random.seed(1)
    documents = {}
    for split in ("train", "test"):
        with open(os.path.join(corpus, split + ".json")) as f:
            documents[split] = json.load(f)
    os.makedirs(work, exist_ok=True)
    path = os.path.join(work, "tokenizer.json")
    if not os.path.exists(path):
        make_tokenizer(balanced_sample(documents["train"])).save(path)
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    log("tokenizer done")
    arrays = {}
    for split, all_documents in documents.items():
        for kind in ("python", "manual"):
            own = [d for d in all_documents if d[0] == kind]
            random.shuffle(own)
            if split == "train" and "TEXT" in os.environ:
                ends = np.cumsum([len(d[2].encode()) for d in own])
                own = own[:int(np.searchsorted(ends, int(os.environ["TEXT"]))) + 1]
            starts, ids, size = [], [], 0
            for a in range(0, len(own), 2048):
                for e in tokenizer.encode_batch([d[2] for d in own[a:a + 2048]], add_special_tokens=False):
                    starts.append(size)
                    ids.append(np.array(e.ids + [END_OF_TEXT], dtype=np.uint16))
                    size += len(ids[-1])
            arrays["%s_%s" % (split, kind)] = np.concatenate(ids)
            arrays["%s_%s_starts" % (split, kind)] = np.array(starts, dtype=np.int64)
            log(split, kind, len(own), "files", size, "tokens, bytes a token", sum(len(d[2].encode()) for d in own) / size)
    np.savez(os.path.join(work, "tokens.npz"), **arrays)
    parts = {  # the pieces of a needle, so that the GPU stages need no tokenizer
        name: {"plant": tokenizer.encode("\nNote: the pass key of %s is 00000.\n" % name).ids,
               "question": tokenizer.encode("\nQuestion: what is the pass key of %s?\nAnswer: the pass key of %s is" % (name, name)).ids}
        for name in ("alpha", "bravo", "delta", "kilo", "lima", "oscar", "sierra", "tango", "victor", "zulu")}
    parts["answer"] = tokenizer.encode(" 00000.\n").ids
    parts["digits"] = [tokenizer.encode(str(d)).ids[0] for d in range(10)]
    with open(os.path.join(work, "needle.json"), "w") as f:
        json.dump(parts, f)


class Text:
    """Token windows of the training split on the device, as much of either kind."""

    def __init__(self, work):
        arrays = np.load(os.path.join(work, "tokens.npz"))
        self.kinds = []
        for kind in ("python", "manual"):
            ids = torch.from_numpy(arrays["train_" + kind].astype(np.int16)).to(DEVICE)
            self.kinds.append((ids, torch.from_numpy(arrays["train_%s_starts" % kind]).to(DEVICE)))
        self.host = np.concatenate([arrays["train_python"], arrays["train_manual"]])
        with open(os.path.join(work, "needle.json")) as f:
            self.needle = json.load(f)

    def windows(self, count, length):
        """-> [count, length]; one window in six starts with a file."""
        out = []
        for half, (ids, starts) in enumerate(self.kinds):
            n = count // 2 if half else count - count // 2
            offset = torch.randint(0, len(ids) - length, (n,), device=DEVICE)
            aligned = starts[torch.randint(0, len(starts), (n,), device=DEVICE)].clamp(max=len(ids) - length)
            offset = torch.where(torch.rand(n, device=DEVICE) < 1 / 6, aligned, offset)
            out.append(ids[offset[:, None] + torch.arange(length, device=DEVICE)])
        return torch.cat(out).long()

    def needles(self, count, length):
        """Windows with one to five pass keys planted, each asked for somewhere later, one of them at the very end."""
        out = np.empty((count, length), dtype=np.int16)
        names = [n for n in self.needle if n not in ("answer", "digits")]
        zero = self.needle["digits"][0]
        for row in out:
            events = []
            for name in random.sample(names, random.randint(1, 5)):
                key = iter([random.randint(1, 9)] + [random.randint(0, 9) for _ in range(4)])
                key = [self.needle["digits"][d] for d in key]

                def fill(ids):
                    digits = iter(key)
                    return [next(digits) if i == zero else i for i in ids]

                ask = self.needle[name]["question"] + fill(self.needle["answer"])
                at = random.random()
                events.append((at, fill(self.needle[name]["plant"])))
                events += [(at + (1 - at) * random.random(), ask) for _ in range(random.randint(0, 2))]
            events.append((1.0, ask))  # the last name drawn
            room = length - sum(len(e[1]) for e in events)
            at = random.randrange(len(self.host) - room)
            body, used, parts = self.host[at:at + room], 0, []
            for place, ids in sorted(events, key=lambda e: e[0]):
                until = int(place * room)
                parts += [body[used:until], np.array(ids, dtype=np.uint16)]
                used = until
            row[:] = np.concatenate(parts + [body[used:]])
        return torch.from_numpy(out).to(DEVICE)


PROMPT, HELD_OUT = 128, 256  # tokens of a prompt; held-out prompts of either kind, for measure_pair.py


def stage_prompts(work):
    """WORK_DIR/prompts.npz: train [PROMPTS, 128], as much of either kind; test_python and test_manual [256, 128], each from a
    random place of a random file of 600 tokens or more that was held out."""
    torch.manual_seed(7)
    random.seed(7)
    arrays = np.load(os.path.join(work, "tokens.npz"))
    out = {"train": Text(work).windows(int(budget("PROMPTS", 16384)), PROMPT).cpu().numpy().astype(np.uint16)}
    for kind in ("python", "manual"):
        ids, starts = arrays["test_" + kind], arrays["test_%s_starts" % kind].tolist()
        files = [(a, b) for a, b in zip(starts, starts[1:] + [len(ids)]) if b - a >= 600]
        chosen = [random.choice(files) for _ in range(HELD_OUT)]
        out["test_" + kind] = np.stack([ids[a:][:PROMPT] for a in (random.randrange(a, b - 1 - PROMPT) for a, b in chosen)])
        log(kind, len(files), "held-out files")
    np.savez(os.path.join(work, "prompts.npz"), **out)


# ---- optimisation ----------------------------------------------------------------------------------------------------

def orthogonal(g):
    """[n, rows, columns] -> about the nearest matrices with equal singular values (Newton-Schulz, the quintic of Muon)."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (2.0315 * a @ a - 4.7750 * a) @ x
    return (x.mT if tall else x).to(g.dtype)


class Optimiser:
    """Muon for the matrices of the blocks and what leads into them, AdamW for embedding, code books and norms."""

    def __init__(self, model, matrix_rate, rest_rate, decay):
        named = list(model.named_parameters())
        matrix = {n: n in ("fc", "selector_hidden") or p.dim() == 3 and n not in NOT_MATRICES for n, p in named}
        self.matrices = [p for n, p in named if matrix[n]]
        rest = [p for n, p in named if not matrix[n]]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(rest, lr=rest_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=DEVICE.type == "cuda")
        self.matrix_rate, self.rest_rate, self.decay = matrix_rate, rest_rate, decay

    @torch.no_grad()
    def step(self, scale):
        for p, m in zip(self.matrices, self.momentum):
            m.lerp_(p.grad, 0.05)
            update = orthogonal(torch.lerp(p.grad, m, 0.95).view(-1, *p.shape[-2:])).view_as(p)
            rate = self.matrix_rate * scale
            p.mul_(1 - rate * self.decay).add_(update, alpha=-rate * max(1, p.shape[-2] / p.shape[-1]) ** 0.5)
            p.grad = None
        for group in self.adam.param_groups:
            group["lr"] = self.rest_rate * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def run_schedule(step, optimiser, seconds, name, save):
    """Warm up over 2 % of the time, then fall linearly to zero. step(progress) -> loss after its backward, text for the log."""
    synchronize()
    start, count, reported, progress = time.time(), 0, -1, 0.0
    while True:
        if count % (1 if TINY else 16) == 0:
            synchronize()
            progress = (time.time() - start) / seconds
            if progress >= 1:
                break
        loss, words = step(progress)
        optimiser.step(min(1.0, progress / 0.02 + 0.01) * (1 - progress))
        count += 1
        if int(progress * 20) > reported:
            reported = int(progress * 20)
            log(name, "step", count, "%.0f%%" % (100 * progress), "loss %.3f" % loss.item(), words() if words else "")
            if reported % 5 == 4:
                save()
    log(name, count, "steps, %.1f ms each" % (1e3 * seconds / count), "loss %.3f" % loss.item())


# ---- target ----------------------------------------------------------------------------------------------------------

def stage_target(work, family):
    torch.manual_seed(1)
    random.seed(1)
    text = Text(work)
    kind, config = FAMILIES[family]
    target = kind(config).to(DEVICE)
    log("target: %.2f M parameters" % (sum(p.numel() for p in target.parameters()) / 1e6))
    shapes = [(2, 768), (1, 1024)] if TINY else [(32, 2048), (16, 4096)]  # the last fifth of the time is for the longer context
    if family == "qwen35":
        shapes = shapes[:1]  # one context: compiling the other takes longer than its fifth of the time is worth
    pools = [text.needles(16 if TINY else n, length) for (_, length), n in zip(shapes, (24000, 8000))]
    log("needles made")

    def loss_of(tokens):
        rows = target(tokens)[0]
        return F.cross_entropy(target.logits(rows[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())

    compiled = loss_of if TINY else torch.compile(loss_of, dynamic=False)
    optimiser = Optimiser(target, budget("RATE_MATRIX", 0.02), budget("RATE_REST", 4e-3), 0.05)

    def step(progress, which=None):
        which = int(progress > 0.8 and len(shapes) > 1) if which is None else which
        count, length = shapes[which]
        tokens = text.windows(count, length)
        planted = pools[which][torch.randint(0, len(pools[which]), (count,), device=DEVICE)].long()
        tokens = torch.where(torch.rand(count, 1, device=DEVICE) < 0.08, planted, tokens)
        loss = compiled(tokens)
        loss.backward()
        return loss.detach(), None

    def save():
        folder = os.path.join(work, "target")
        with torch.no_grad():  # the mask token never occurs in text: give its row a place near the others before it is frozen
            embed, noise = target.embed, torch.randn(256, generator=torch.Generator().manual_seed(5)).to(DEVICE)
            kept = embed[MASK].clone()
            embed[MASK] = embed[2:].mean(0) + 0.5 * embed[2:].std() * noise
            target.save(folder)
            embed[MASK] = kept
        shutil.copy(os.path.join(work, "tokenizer.json"), folder)
        with open(os.path.join(folder, "generation_config.json"), "w") as f:
            json.dump(GENERATION, f, indent=2)
            f.write("\n")

    for which in range(len(shapes))[::-1]:  # compile outside the budget
        for _ in range(2):
            step(0.0, which)
    for p in target.parameters():
        p.grad = None
    log("compiled")
    run_schedule(step, optimiser, budget("T_TARGET", 540), "target", save)
    save()


# ---- streams ---------------------------------------------------------------------------------------------------------

class Prompts:
    """The prompts of prompts.npz in random order, each once."""

    def __init__(self, path):
        ids = torch.from_numpy(np.load(path)["train"].astype(np.int64))
        self.left = ids[torch.randperm(len(ids))[:int(budget("STREAMS", len(ids)))]].to(DEVICE)

    def windows(self, count, length):
        out, self.left = self.left[:count, :length], self.left[count:]
        return out


def stage_generate(work):
    """WORK_DIR/streams.npz: for each shape the streams, where generation began, and the temperature of each."""
    torch.manual_seed(2)
    target = load_target(os.path.join(work, "target"), DEVICE)
    seconds, path = budget("T_GENERATE", 75), os.path.join(work, "prompts.npz")
    plan = [(4096, 128, 128, 0.50), (4096, 32, 224, 0.15), (2048, 128, 384, 0.15), (384, 1664, 384, 0.20)]  # batch, prompt, new, share
    if TINY:
        plan = [(4, 12, 36, 0.4), (4, 6, 42, 0.2), (4, 12, 60, 0.2), (2, 40, 24, 0.2)]
    given = os.path.exists(path)
    if given:
        plan = [(8, PROMPT, 40, 1.0)] if TINY else [(4096, PROMPT, 256, 1.0)]
    text = Prompts(path) if given else Text(work)
    arrays = {}
    for index, (batch, n_prompt, n_new, share) in enumerate(plan):
        generator = Generator(target, batch, n_prompt, n_new)
        synchronize()
        start, streams, temperatures = time.time(), [], []
        while not streams or time.time() - start < share * seconds:
            prompts = text.windows(batch, n_prompt)
            if len(prompts) < batch:
                break
            u = torch.rand(batch, device=DEVICE)
            temperature = torch.where(u < 0.35, 0.0, torch.where(u < 0.9, 0.8, 1.0))
            streams.append(generator(prompts, temperature).to(torch.int16).cpu())
            temperatures.append(temperature.half().cpu())
        arrays["streams_%d" % index] = torch.cat(streams).numpy()
        arrays["temperature_%d" % index] = torch.cat(temperatures).numpy()
        arrays["first_%d" % index] = n_prompt
        log("generated", arrays["streams_%d" % index].shape, "from prompts of", n_prompt)
        del generator
    np.savez(os.path.join(work, "streams.npz"), **arrays)


# ---- drafter ---------------------------------------------------------------------------------------------------------

class Streams:
    """The generated streams on the device, joined by length, and what the target makes of them: its taps, and its final rows
    (3 KB a token; each stream is drawn many times)."""

    @torch.no_grad()
    def __init__(self, work, target, taps):
        arrays = np.load(os.path.join(work, "streams.npz"))
        groups = {}
        for index in range(sum(name.startswith("streams_") for name in arrays)):
            tokens = torch.from_numpy(arrays["streams_%d" % index]).to(DEVICE)
            temperature = torch.from_numpy(arrays["temperature_%d" % index]).float().to(DEVICE)
            first = torch.full((len(tokens),), int(arrays["first_%d" % index]), device=DEVICE)
            groups.setdefault(tokens.shape[1], []).append((tokens, temperature, first))
        self.groups = {length: [torch.cat(parts) for parts in zip(*members)] for length, members in sorted(groups.items())}
        for length, group in self.groups.items():
            tokens, step = group[0], max(1, 2 ** 16 // length)
            E = target.config["hidden_size"]
            finals = torch.empty(*tokens.shape, E, dtype=torch.bfloat16, device=DEVICE)
            features = torch.empty(*tokens.shape, len(taps) * E, dtype=torch.bfloat16, device=DEVICE)
            for a in range(0, len(tokens), step):
                rows, after = target(tokens[a:a + step].long(), taps)
                finals[a:a + step] = rows
                if len(taps):
                    features[a:a + step] = after
            group += [finals, features]

    def batch(self, length, count, n_anchors, proposals):
        """-> tokens [count, length], temperature [count], anchors [count, n_anchors] within the generated part, the target's final
        rows [count, length, E] and taps [count, length, n_taps * E]."""
        tokens, temperature, first, finals, features = self.groups[length]
        rows = torch.randint(0, len(tokens), (count,), device=DEVICE)
        choice = torch.rand(count, length - proposals, device=DEVICE)
        choice = choice.masked_fill(torch.arange(length - proposals, device=DEVICE) < first[rows, None], -1)
        return tokens[rows].long(), temperature[rows], choice.topk(n_anchors, 1).indices, finals[rows], features[rows]


def drafter_config(target, kind, layers, ffn, head, taps):
    """All kinds propose 7 tokens; an MTP block has the target's sizes and goes on as long as it is asked to."""
    if kind == "mtp":
        return {**target, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    config = {**DRAFTER, "num_hidden_layers": layers, "intermediate_size": ffn, "head_dim": head,
              "layer_types": ["sliding_attention"] + ["full_attention"] * (layers - 1)}
    nested = {"mask_token_id": MASK, "target_layer_ids": taps}
    del config["dflash_config"]
    if kind == "dspark":
        return {**config, "architectures": ["Qwen3DSparkModel"], "is_causal": False, "block_size": config["block_size"] - 1,
                **nested, **DSPARK, "num_anchors": 48}
    if kind == "dflash2":
        return {**config, "architectures": ["DFlash2DraftModel"], "is_causal": False, "dflash_config": {**nested, **DFLASH2}}
    return {**config, "dflash_config": nested}


def stage_drafter(work, kind, layers, ffn, head, taps, name):
    torch.manual_seed(3)
    random.seed(3)
    target = load_target(os.path.join(work, "target"), DEVICE)
    taps = [int(t) for t in taps.split(",")] if taps else TAPS[target.config["model_type"]]
    drafter = KINDS[kind](drafter_config(target.config, kind, layers, ffn, head, taps)).to(DEVICE)
    streams, P = Streams(work, target, drafter.taps), drafter.P
    log("%s: %.3f M parameters, streams" % (name, sum(p.numel() for p in drafter.parameters()) / 1e6),
        {length: len(group[0]) for length, group in streams.groups.items()})
    torch.manual_seed(3)  # from here on the same batches for every kind
    lengths = sorted(streams.groups)  # of up to three, drawn 70 : 15 : 15
    batches = {length: (2, 4) if TINY else (min(64, 24576 // length), 48) for length in lengths}
    fade = torch.exp(-torch.arange(P, device=DEVICE) / 4)

    def loss_of(tokens, temperature, anchors, finals, features):
        """Cross entropy with the target's own distribution at each stream's temperature, a slot counting for more where the
        drafter is likely to have got the slots before it right."""
        with torch.no_grad():
            place = anchors[:, :, None] + torch.arange(P, device=DEVICE)  # the row before each drafted position predicts it
            goal = target.logits(finals[torch.arange(len(tokens), device=DEVICE)[:, None, None], place]).float()
            before, truth = (tokens.gather(1, p.flatten(1)).view_as(place) for p in (place, place + 1))
            goal = (goal / temperature[:, None, None, None].clamp(min=0.05)).softmax(-1)
        loss, true, choice = drafter.learn(target, tokens, anchors, finals, features, goal, before, truth)  # [b, N, P]
        with torch.no_grad():
            likely = 0.5 + 0.5 * true
            reached = F.pad(likely.cumprod(-1)[..., :-1], (1, 0), value=1.0)
            weight = fade * (0.3 + 0.7 * reached)
        return (loss * weight).sum() / weight.sum(), choice == truth

    compiled = torch.compile(loss_of, dynamic=False) if budget("COMPILE", not TINY) else loss_of
    optimiser = Optimiser(drafter, budget("RATE_MATRIX", 0.02), budget("RATE_REST", 3e-3), 0.05)

    def step(progress, length=None):
        length = length or random.choices(lengths, (70, 15, 15)[:len(lengths)])[0]
        loss, right = compiled(*streams.batch(length, *batches[length], P))
        loss.backward()
        return loss.detach(), lambda: "length %d, right by slot %s, tau %.2f" % (
            length, " ".join("%.2f" % r for r in right.float().mean((0, 1)).tolist()),
            1 + right.long().cumprod(-1).sum(-1).float().mean().item())

    def save():
        drafter.save(os.path.join(work, name))

    for length in lengths:
        for _ in range(2):
            step(0.0, length)
    for p in drafter.parameters():
        p.grad = None
    log("compiled")
    run_schedule(step, optimiser, max(1.0, min(budget("T_DRAFTER", 360), budget("DEADLINE", "inf") - time.time())), name, save)
    save()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = arguments.add_subparsers(dest="stage", required=True)
    for name, folders in (("tokens", ("corpus", "work")), ("prompts", ("work",)), ("target", ("work",)), ("generate", ("work",)),
                          ("drafter", ("work",))):
        stage = stages.add_parser(name)
        for folder in folders:
            stage.add_argument(folder)
        if name == "target":
            stage.add_argument("--family", choices=FAMILIES, default="qwen3")
        if name == "drafter":
            stage.add_argument("--kind", choices=KINDS, default="dflash")
            for option in ("layers", "ffn", "head"):
                stage.add_argument("--" + option, type=int, default=DRAFTER[{"layers": "num_hidden_layers", "ffn": "intermediate_size",
                                                                             "head": "head_dim"}[option]])
            stage.add_argument("--taps")
            stage.add_argument("--name", default="drafter")
    options = vars(arguments.parse_args())
    # delta nets multiply float32 numbers, all else bf16 ones
    torch.set_float32_matmul_precision("high")
    {"tokens": stage_tokens, "prompts": stage_prompts, "target": stage_target, "generate": stage_generate,
     "drafter": stage_drafter}[options.pop("stage")](**options)


if __name__ == "__main__":
    main()
