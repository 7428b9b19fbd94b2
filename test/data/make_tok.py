#!/usr/bin/env python3
"""make_tok.py - the tokenizer fixtures, by the reference implementation (pip install tokenizers; made with 0.23.3).

For each pre-tokenizer P of gpt-2, qwen2, qwen35, llama-bpe:
    tok_P.json       a small tokenizer.json, trained on a few modules of the Python standard library
    tok_P.i32        ids of tok.txt, control tokens recognised (little-endian int32)
    tok_P_plain.i32  the same with control tokens as plain text
and tok.txt, the text, and tok_nfc.txt, its NFC. Run in this directory. Characters are of Unicode 3.2, because the reference's
own Unicode data is old (of Unicode 14, it misses the combining classes of 98 marks)."""
import argparse
import array
import inspect
import json
import random
import shlex
import textwrap
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")

SENTENCES = [
    "It's what we'll do, they've said; I'M SURE HE'D'VE known. Don't. 'Round 1,234,567.89 (10%)!\n",
    "def f(x):\n    if x > 0:\n        return [x ** 2 for _ in range(10)]\n\n\n\treturn None\r\n\r\n",
    "Zażółć gęślą jaźń. Größe, naïve café, Ελληνικά, Русский язык, עברית, العربية, हिन्दी, ภาษาไทย\n",
    "日本語のテキスト、漢字かな交じり文。中文字符，没有空格。한국어 텍스트 각\n",
    "e\u0301 a\u0308\u0323 q\u0323\u0307 \u1e0b\u0323 \u1100\u1161\u11a8 \uac00\u11a8 \u0344 \u2126 \u212b <\u0338 \u304b\u3099\n",
    "\u2600\ufe0f \u263a \u2764\u200d\u2716 \u00bd\u00b2 \u2167 \u0661\u0662\u0663 \u3000\u00a0\u2003\u180e\u200b\u2028x\u0085y\x0b\x0cz\x1c\n",
    "\u017ft '\u017f 'Ll '\u017f'LL \u212a'Re\n",
    "<|im_start|>user\nhello<|im_end|>\n<think>\n\nhm</think><|im<|im_|><|endoftext|>\u65e5\u672c<x>\u65e5\u672c\n",
    "trailing   \n   leading\n \n  \n\r\n mixed \t tabs\t\n", " " * 70 + "x" + "\n" * 9 + "a" * 130 + "=" * 60 + "-" * 33 + "0" * 40,
]


def text():
    rng = random.Random(20)
    old = unicodedata.ucd_3_2_0
    known = [c for c in range(0x20, 0x30000) if old.category(chr(c)) not in ("Cn", "Cs", "Co")]
    marks = [c for c in known if old.category(chr(c))[0] == "M"]
    pools = [known, marks, range(0x20, 0x7f), [0x20, 0x20, 0x0a, 0x0d, 0x09], range(0x1100, 0x1113), range(0xac00, 0xad00),
             range(0xc0, 0x250), range(0x30, 0x3a), [ord(c) for c in "<|im_startend>"]]
    out = list(SENTENCES)
    for _ in range(150):
        out.append("".join(chr(rng.choice(rng.choice(pools))) for _ in range(rng.randrange(1, 25))))
        out.append(rng.choice([" ", "\n", "x", ". "]))
        if rng.random() < 0.2:
            out.append(rng.choice(SENTENCES)[:40])
    return "".join(out)


def make(kind):
    t = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt-2")
    if kind == "gpt-2":
        t.pre_tokenizer = byte_level
    else:
        regex = {"qwen2": QWEN2, "qwen35": QWEN35, "llama-bpe": LLAMA}[kind]
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level])
    if kind.startswith("qwen"):
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    corpus = [inspect.getsource(m) for m in (textwrap, shlex, json, argparse)] + SENTENCES * 3
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=620, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                      show_progress=False))
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im"])
    t.add_tokens([AddedToken(s, normalized=False) for s in ("<think>", "<think>\n\n", "\u65e5\u672c<x>")])
    if kind == "llama-bpe":
        bos = "<|begin_of_text|>"
        t.add_special_tokens([bos])
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=bos + " $A", pair=bos + " $A " + bos + " $B:1",
                                          special_tokens=[(bos, t.token_to_id(bos))])])
    return t


def write_ids(name, ids):
    a = array.array("i", ids)
    assert a.itemsize == 4
    with open(name, "wb") as f:
        f.write(a.tobytes())


def main():
    s = text()
    nfc = unicodedata.normalize("NFC", s)
    for name, v in (("tok.txt", s), ("tok_nfc.txt", nfc)):
        with open(name, "w", newline="") as f:
            f.write(v)
    for kind in ("gpt-2", "qwen2", "qwen35", "llama-bpe"):
        t = make(kind)
        t.save(f"tok_{kind}.json", pretty=False)
        for plain in (False, True):
            t.encode_special_tokens = plain
            ids = t.encode(s, add_special_tokens=False).ids
            assert t.decode(ids, skip_special_tokens=False) == (nfc if kind.startswith("qwen") else s)
            write_ids(f"tok_{kind}{'_plain' if plain else ''}.i32", ids)


main()
