#!/usr/bin/env python3
"""Train a small pair: a target of 7 to 8 M parameters, Qwen3 or Qwen3.5 (hybrid), and a DFlash drafter for it.

usage: train_pair.py tokens CORPUS_DIR WORK_DIR                     train the tokenizer, encode the corpus of make_corpus.py (no GPU)
       train_pair.py target WORK_DIR [--family qwen3|qwen35]        T_TARGET seconds
       train_pair.py generate WORK_DIR                              T_GENERATE seconds: streams that the target writes itself
       train_pair.py drafter WORK_DIR                               T_DRAFTER seconds

Run in this order; each stage leaves its result in WORK_DIR, so one can be run again. The budgets are environment variables and
exclude compilation; TEXT is the number of bytes of training text that tokens takes of either kind (all by default). A tokenizer.json
that lies in WORK_DIR is used instead of a new one. The device is cuda where there is one, else the CPU (with budgets of seconds: a
check of the script). Then measure_pair.py measures what came out. Needs torch, numpy, safetensors; tokens needs tokenizers too.
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

from pair_model import NOT_MATRICES, Drafter, Generator, HybridTarget, Target, load_target

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
    """Muon for the matrices of the blocks, AdamW for embedding and norms."""

    def __init__(self, model, matrix_rate, rest_rate, decay):
        named = list(model.named_parameters())
        matrix = {n: n == "fc" or p.dim() == 3 and n not in NOT_MATRICES for n, p in named}
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

def stage_generate(work):
    """WORK_DIR/streams.npz: for each shape the streams, where generation began, and the temperature of each."""
    torch.manual_seed(2)
    text, target = Text(work), load_target(os.path.join(work, "target"), DEVICE)
    seconds = budget("T_GENERATE", 75)
    plan = [(4096, 128, 128, 0.50), (4096, 32, 224, 0.15), (2048, 128, 384, 0.15), (384, 1664, 384, 0.20)]  # batch, prompt, new, share
    if TINY:
        plan = [(4, 12, 36, 0.4), (4, 6, 42, 0.2), (4, 12, 60, 0.2), (2, 40, 24, 0.2)]
    arrays = {}
    for index, (batch, n_prompt, n_new, share) in enumerate(plan):
        generator = Generator(target, batch, n_prompt, n_new)
        synchronize()
        start, streams, temperatures = time.time(), [], []
        while not streams or time.time() - start < share * seconds:
            u = torch.rand(batch, device=DEVICE)
            temperature = torch.where(u < 0.35, 0.0, torch.where(u < 0.9, 0.8, 1.0))
            streams.append(generator(text.windows(batch, n_prompt), temperature).to(torch.int16).cpu())
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
            finals = torch.empty(*tokens.shape, target.config["hidden_size"], dtype=torch.bfloat16, device=DEVICE)
            features = torch.empty(*tokens.shape, len(taps) * finals.shape[2], dtype=torch.bfloat16, device=DEVICE)
            for a in range(0, len(tokens), step):
                finals[a:a + step], features[a:a + step] = target(tokens[a:a + step].long(), taps)
            group += [finals, features]

    def batch(self, length, count, n_anchors, block):
        """-> tokens [count, length], temperature [count], anchors [count, n_anchors] within the generated part, the target's final
        rows [count, length, E] and taps [count, length, n_taps * E]."""
        tokens, temperature, first, finals, features = self.groups[length]
        rows = torch.randint(0, len(tokens), (count,), device=DEVICE)
        choice = torch.rand(count, length - block + 1, device=DEVICE)
        choice = choice.masked_fill(torch.arange(length - block + 1, device=DEVICE) < first[rows, None], -1)
        return tokens[rows].long(), temperature[rows], choice.topk(n_anchors, 1).indices, finals[rows], features[rows]


def stage_drafter(work):
    torch.manual_seed(3)
    random.seed(3)
    target = load_target(os.path.join(work, "target"), DEVICE)
    DRAFTER["dflash_config"]["target_layer_ids"] = TAPS[target.config["model_type"]]
    drafter = Drafter(DRAFTER).to(DEVICE)
    streams, B = Streams(work, target, drafter.taps), drafter.B
    log("drafter: %.2f M parameters, streams" % (sum(p.numel() for p in drafter.parameters()) / 1e6),
        {length: len(group[0]) for length, group in streams.groups.items()})
    lengths = sorted(streams.groups)  # three of them, drawn 70 : 15 : 15
    batches = {lengths[0]: (2, 4), lengths[1]: (2, 4), lengths[2]: (1, 4)} if TINY else \
        {lengths[0]: (64, 48), lengths[1]: (40, 48), lengths[2]: (12, 48)}
    fade = torch.exp(-torch.arange(B - 1, device=DEVICE) / 4)

    def loss_of(tokens, temperature, anchors, finals, features):
        """Cross entropy with the target's own distribution at each stream's temperature, a slot counting for more where the
        drafter is likely to have got the slots before it right."""
        with torch.no_grad():
            place = anchors[:, :, None] + torch.arange(B - 1, device=DEVICE)  # the row before each drafted position predicts it
            goal = target.logits(finals[torch.arange(len(tokens), device=DEVICE)[:, None, None], place]).float()
            truth = tokens.gather(1, (place + 1).flatten(1)).view_as(place)
            goal = (goal / temperature[:, None, None, None].clamp(min=0.05)).softmax(-1)
        rows = drafter(features, tokens, anchors, target.embed)[:, :, 1:]
        guess = target.logits(rows).float().log_softmax(-1)
        loss = -(goal * guess).sum(-1)  # [b, N, B - 1]
        with torch.no_grad():
            likely = 0.5 + 0.5 * guess.gather(-1, truth[..., None]).squeeze(-1).exp()
            reached = F.pad(likely.cumprod(-1)[..., :-1], (1, 0), value=1.0)
            weight = fade * (0.3 + 0.7 * reached)
            right = (guess.argmax(-1) == truth)
        return (loss * weight).sum() / weight.sum(), right

    compiled = loss_of if TINY else torch.compile(loss_of, dynamic=False)
    optimiser = Optimiser(drafter, budget("RATE_MATRIX", 0.02), budget("RATE_REST", 3e-3), 0.05)

    def step(progress, length=None):
        length = length or random.choices(lengths, (70, 15, 15))[0]
        loss, right = compiled(*streams.batch(length, *batches[length], B))
        loss.backward()
        return loss.detach(), lambda: "length %d, right by slot %s, tau %.2f" % (
            length, " ".join("%.2f" % r for r in right.float().mean((0, 1)).tolist()),
            1 + right.long().cumprod(-1).sum(-1).float().mean().item())

    def save():
        drafter.save(os.path.join(work, "drafter"))

    for length in lengths:
        for _ in range(2):
            step(0.0, length)
    for p in drafter.parameters():
        p.grad = None
    log("compiled")
    run_schedule(step, optimiser, budget("T_DRAFTER", 360), "drafter", save)
    save()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = arguments.add_subparsers(dest="stage", required=True)
    for name, folders in (("tokens", ("corpus", "work")), ("target", ("work",)), ("generate", ("work",)), ("drafter", ("work",))):
        stage = stages.add_parser(name)
        for folder in folders:
            stage.add_argument(folder)
        if name == "target":
            stage.add_argument("--family", choices=FAMILIES, default="qwen3")
    options = vars(arguments.parse_args())
    # delta nets multiply float32 numbers, all else bf16 ones
    torch.set_float32_matmul_precision("high")
    {"tokens": stage_tokens, "target": stage_target, "generate": stage_generate, "drafter": stage_drafter}[options.pop("stage")](**options)


if __name__ == "__main__":
    main()
