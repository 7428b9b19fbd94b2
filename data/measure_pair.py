#!/usr/bin/env python3
"""Measure a pair, or several drafters of one target, on held-out files, or cut the prompts of data/prompts from them.

usage: measure_pair.py measure PAIR_DIR CORPUS_DIR OUT.json    PAIR_DIR holds target/ (with tokenizer.json) and drafter/
       measure_pair.py heads PAIR_DIR OUT.json NAME[:P]...     PAIR_DIR holds target/, each NAME/ and train_pair.py's prompts.npz
       measure_pair.py prompts PAIR_DIR CORPUS_DIR PROMPT_DIR

The weights are used as the files round them, the arithmetic is float32. tau counts the tokens a cycle, the target's own next
token included: every stream is walked as the verify loop would walk it. "first 64" ends the walk 64 tokens after the prompt: a
small model repeats itself when greedy, and what repeats is easy to draft, so that column and those at T = 0.8 are the ones to
trust. P cuts a draft to its first P tokens (an MTP block goes on to P); drafters are compared on the same streams. Prompts are
128 tokens from a random place of a held-out file; 384 tokens follow. A needle is a five-digit key planted in held-out text and
asked for at the end; it is found when the greedy answer equals it.
"""
import json
import math
import os
import random
import re
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from pair_heads import load_drafter
from pair_model import Generator, accepted_lengths, load_target

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TINY = DEVICE.type == "cpu"
N_PROMPTS, PROMPT, NEW = (4, 128, 72) if TINY else (256, 128, 384)
TABLES = re.compile(r"encodings/|builtins|unicode|iso_8859|toc_export|pcre")  # held-out files that are tables or near copies
NAMES = ["alpha", "bravo", "delta", "kilo", "lima", "oscar", "sierra", "tango", "victor", "zulu"]


def read_held_out(corpus, tokenizer):
    """-> {kind: [ids of a file]} of files of at least 600 tokens."""
    with open(os.path.join(corpus, "test.json")) as f:
        documents = json.load(f)
    out = {}
    for kind in ("python", "manual"):
        encoded = tokenizer.encode_batch([d[2] for d in documents if d[0] == kind], add_special_tokens=False)
        out[kind] = [e.ids for e in encoded if len(e.ids) >= 600]
    return out


def needle(tokenizer, length, text):
    """-> prompt of length minus the answer, answer."""
    def encode(s):
        return tokenizer.encode(s, add_special_tokens=False).ids
    names = random.sample(NAMES, random.randint(1, 3))
    keys = [str(random.randint(10000, 99999)) for _ in names]
    asked = random.randrange(len(names))
    question = encode("\nQuestion: what is the pass key of %s?\nAnswer: the pass key of %s is" % (names[asked], names[asked]))
    answer = encode(" %s.\n" % keys[asked])
    plants = [encode("\nNote: the pass key of %s is %s.\n" % pair) for pair in zip(names, keys)]
    room = length - len(question) - len(answer) - sum(map(len, plants))
    at = random.randrange(len(text) - room)
    body = text[at:at + room]
    places = sorted(random.randrange(room) for _ in plants)
    out, used = [], 0
    for place, plant in zip(places, plants):
        out += body[used:place] + plant
        used = place
    return out + body[used:] + question, answer


@torch.no_grad()
def held_out_loss(target, files):
    """Mean nats a token over full windows of 1,024."""
    total = count = 0
    for ids in files:
        for a in range(0, len(ids) - 1, 1024):
            window = torch.tensor([ids[a:a + 1025]], device=DEVICE)
            if window.shape[1] < 1025 or (TINY and count):
                break
            logits = target.logits(target(window[:, :-1], dtype=torch.float32)[0])
            total += F.cross_entropy(logits.flatten(0, 1), window[0, 1:], reduction="sum").item()
            count += 1024
    return total / max(count, 1)


def measure(pair, corpus, path):
    torch.manual_seed(4)
    random.seed(4)
    start = time.time()
    target = load_target(os.path.join(pair, "target"), DEVICE)
    drafter = load_drafter(os.path.join(pair, "drafter"), DEVICE)
    tokenizer = Tokenizer.from_file(os.path.join(pair, "target", "tokenizer.json"))
    held_out = read_held_out(corpus, tokenizer)
    report = {"prompts of a kind": N_PROMPTS, "prompt tokens": PROMPT, "new tokens": NEW, "tau": {}, "needle found": {},
              "held-out nats a token": {}, "held-out bits a byte": {}}
    generator = Generator(target, N_PROMPTS, PROMPT, NEW, torch.float32)
    for kind, files in held_out.items():
        loss = held_out_loss(target, files)
        size = sum(len(tokenizer.decode(ids).encode()) for ids in files) / sum(map(len, files))
        report["held-out nats a token"][kind] = round(loss, 4)
        report["held-out bits a byte"][kind] = round(loss / math.log(2) / size, 4)
        prompts = []
        for _ in range(N_PROMPTS):
            ids, place = random.choice(files), random.random()
            prompts.append(ids[int(place * (len(ids) - PROMPT)):][:PROMPT])
        prompts = torch.tensor(prompts, device=DEVICE)
        for name, temperature in (("greedy", 0.0), ("T=0.8", 0.8)):
            streams = generator(prompts, torch.full((N_PROMPTS,), temperature, device=DEVICE)).clone()
            tau, shares = accepted_lengths(target, drafter, streams, PROMPT, PROMPT + NEW - 1 - drafter.P)
            first = accepted_lengths(target, drafter, streams, PROMPT, PROMPT + 64)[0]
            grams = sum(len({tuple(r[i:i + 4]) for i in range(PROMPT, len(r) - 4)}) / (len(r) - 4 - PROMPT) for r in streams.tolist())
            report["tau"]["%s %s" % (kind, name)] = {
                "first 64 tokens": round(first, 3), "all": round(tau, 3), "distinct 4-grams": round(grams / N_PROMPTS, 3),
                "shares of cycles by tokens 1..B": [round(s, 4) for s in shares]}
            print("[%6.1f] %s %s: tau %.2f over the first 64 tokens, %.2f over all, distinct 4-grams %.2f" % (
                time.time() - start, kind, name, first, tau, grams / N_PROMPTS), flush=True)
        print("[%6.1f] %s: %.3f nats a token, %.3f bits a byte" % (
            time.time() - start, kind, loss, report["held-out bits a byte"][kind]), flush=True)
    del generator
    text = [t for files in held_out.values() for ids in files for t in ids + [0]]
    batch, rounds = (2, 1) if TINY else (20, 5)
    for length in (256,) if TINY else (512, 1024, 2048, 3072, 4096):
        found = 0
        for _ in range(rounds):
            pairs = [needle(tokenizer, length, text) for _ in range(batch)]
            n_new = len(pairs[0][1])
            shortest = min(len(p) for p, _ in pairs)  # questions differ by a token or two: cut at the far end
            prompts = torch.tensor([p[len(p) - shortest:] for p, _ in pairs], device=DEVICE)
            out = Generator(target, batch, shortest, n_new, torch.float32)(prompts, torch.zeros(batch, device=DEVICE))
            found += sum(o[shortest:] == a for o, (_, a) in zip(out.tolist(), pairs))
        report["needle found"][str(length)] = found / (batch * rounds)
        print("[%6.1f] needle at %d: %.2f" % (time.time() - start, length, found / (batch * rounds)), flush=True)
    with open(path, "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")


def measure_heads(pair, path, names):
    torch.manual_seed(4)
    start, report = time.time(), {"prompts of a kind": N_PROMPTS, "prompt tokens": PROMPT, "new tokens": NEW, "tau": {}}
    target = load_target(os.path.join(pair, "target"), DEVICE)
    prompts, streams = np.load(os.path.join(pair, "prompts.npz")), {}
    generator = Generator(target, N_PROMPTS, PROMPT, NEW, torch.float32)
    for kind in ("python", "manual"):
        for name, temperature in (("greedy", 0.0), ("T=0.8", 0.8)):
            ids = torch.from_numpy(prompts["test_" + kind][:N_PROMPTS].astype(np.int64)).to(DEVICE)
            streams["%s %s" % (kind, name)] = generator(ids, torch.full((N_PROMPTS,), temperature, device=DEVICE)).clone()
    del generator
    print("[%6.1f] streams" % (time.time() - start), flush=True)
    for name in names:
        folder, proposals = (name + ":").split(":")[:2]
        drafter = load_drafter(os.path.join(pair, folder), DEVICE)
        drafter.P = int(proposals) if proposals else drafter.P
        label = "%s, %d proposals" % (folder, drafter.P)
        row = report["tau"][label] = {"parameters": sum(p.numel() for p in drafter.parameters())}
        for kind, tokens in streams.items():
            first, all_of_it = (accepted_lengths(target, drafter, tokens, PROMPT, end) for end in (PROMPT + 64, PROMPT + NEW - 8))
            row[kind] = {"first 64 tokens": round(first[0], 3), "all": round(all_of_it[0], 3),
                         "shares of cycles by tokens 1..B": [round(s, 4) for s in all_of_it[1]]}
        print("[%6.1f] %-24s first 64 / all: %s" % (time.time() - start, label, "; ".join(
            "%s %.3f / %.3f" % (kind, row[kind]["first 64 tokens"], row[kind]["all"]) for kind in streams)), flush=True)
        with open(path, "w") as f:  # after each, so that what is measured stays
            json.dump(report, f, indent=1)
            f.write("\n")


def write_prompts(pair, corpus, folder):
    """Eight prompts of either kind, cut at the start of a line in files that were held out; the last one is long."""
    random.seed(6)
    tokenizer = Tokenizer.from_file(os.path.join(pair, "target", "tokenizer.json"))
    with open(os.path.join(corpus, "test.json")) as f:
        documents = json.load(f)
    os.makedirs(folder, exist_ok=True)
    sources = []
    for kind in ("python", "manual"):
        files = [d for d in documents if d[0] == kind and len(d[2]) > 12000 and not TABLES.search(d[1])]
        for index, (d, length) in enumerate(zip(random.sample(files, 8), (40, 40, 40, 300, 300, 300, 300, 1500))):
            text = d[2]
            at = text.index("\n", random.randrange(len(text) - 8000)) + 1
            ids = tokenizer.encode(text[at:], add_special_tokens=False).ids[:length]
            prompt = tokenizer.decode(ids)
            if "\ufffd" in prompt:  # the cut fell into a character
                prompt = prompt.rstrip("\ufffd")
            name = "%s-%d-%s.txt" % (kind, index + 1, {40: "short", 300: "medium", 1500: "long"}[length])
            with open(os.path.join(folder, name), "w") as f:
                f.write(prompt)
            sources.append("%s\t%s\t%d" % (name, d[1], length))
    with open(os.path.join(folder, "sources.tsv"), "w") as f:
        f.write("prompt\theld-out file\ttokens\n" + "\n".join(sources) + "\n")


if __name__ == "__main__":
    if len(sys.argv) >= 5 and sys.argv[1] == "heads":
        measure_heads(*sys.argv[2:4], sys.argv[4:])
    elif len(sys.argv) == 5 and sys.argv[1] in ("measure", "prompts"):
        {"measure": measure, "prompts": write_prompts}[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(__doc__)
