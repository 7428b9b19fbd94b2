#!/usr/bin/env python3
"""make_tok.py - the tokenizer fixtures, by the reference implementation (pip install tokenizers; made with 0.23.3).

For each pre-tokenizer P of gpt-2, qwen2, qwen35, llama-bpe:
    tok_P.json       a small tokenizer.json, trained on a few modules of the Python standard library
    tok_P.i32        ids of tok.txt, control tokens recognised (little-endian int32)
    tok_P_plain.i32  the same with control tokens as plain text
and tok.txt, the text, and tok_nfc.txt, its NFC. Likewise for two SentencePiece-style vocabularies with byte fallback:
    gemma4     spaces to U+2581, merges over the whole text
    llama-spm  the same behind a space prefix
and, by SentencePiece itself (pip install sentencepiece gguf; made with 0.2.3 and 0.19.0):
    tok_spm.gguf  a vocabulary of scores, as the ecosystem writes those of Llama 2
    tok_spm.i32   ids of tok.txt
Run in this directory; with names of kinds (and spm) as arguments only theirs are made, from the tok.txt that is there. Characters are of Unicode 3.2, because the reference's
own Unicode data is old (of Unicode 14, it misses the combining classes of 98 marks)."""
import argparse
import array
import inspect
import json
import io
import random
import shlex
import sys
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
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=620, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
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


def corpus():
    return [inspect.getsource(m) for m in (textwrap, shlex, json, argparse)] + SENTENCES * 3


def make_spm(kind):
    """Trained on words, so that merges look as in published vocabularies; the pre-tokenizer of the training is not kept."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\u2581", "merged_with_next"),
                                               pre_tokenizers.Split("\n", "contiguous")])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=700, limit_alphabet=130, show_progress=False))
    model = json.loads(t.to_str())["model"]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|im_start|>", "<|im_end|>", "<|im"]
    user = ["<think>", "<think>\n\n", "\u65e5\u672c<x>", "\u2581\u2581\u2581", "<|channel>"]
    tokens = special + [f"<0x{b:02X}>" for b in range(256)]
    tokens += [k for k, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1]) if k not in tokens]
    tokens += [u for u in user if u not in tokens]
    vocab = {k: i for i, k in enumerate(tokens)}
    added = [{"id": vocab[s], "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": s in special} for s in special + user]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    decoder = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizer, pre = spaces, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if kind == "llama-spm":
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, spaces]}
        pre = None
        decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    bos = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": sorted(added, key=lambda a: a["id"]),
        "normalizer": normalizer, "pre_tokenizer": pre, "decoder": {"type": "Sequence", "decoders": decoder},
        "post_processor": {"type": "TemplateProcessing", "single": bos,
                           "pair": bos + [{"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [vocab["<bos>"]], "tokens": ["<bos>"]}}},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": model["merges"]}}))


def write_sentencepiece(s):
    import gguf
    import sentencepiece
    model = io.BytesIO()
    lines = [line for part in corpus() for line in part.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        character_coverage=0.999, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, minloglevel=2)
    p = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(p.vocab_size())
    w = gguf.GGUFWriter("tok_spm.gguf", "llama")
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([p.id_to_piece(i).encode() for i in ids])
    w.add_token_scores([p.get_score(i) for i in ids])
    w.add_token_types([2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else 1 for i in ids])
    w.add_bos_token_id(p.bos_id())
    w.add_eos_token_id(p.eos_id())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    write_ids("tok_spm.i32", p.encode(s))


def write_ids(name, ids):
    a = array.array("i", ids)
    assert a.itemsize == 4
    with open(name, "wb") as f:
        f.write(a.tobytes())


def main(kinds):
    if kinds:
        with open("tok.txt", newline="") as f:
            s = f.read()
    else:
        s = text()
        for name, v in (("tok.txt", s), ("tok_nfc.txt", unicodedata.normalize("NFC", s))):
            with open(name, "w", newline="") as f:
                f.write(v)
        kinds = ["gpt-2", "qwen2", "qwen35", "llama-bpe", "gemma4", "llama-spm", "spm"]
    nfc = unicodedata.normalize("NFC", s)
    for kind in kinds:
        if kind == "spm":
            write_sentencepiece(s)
            continue
        spm = kind in ("gemma4", "llama-spm")
        t = make_spm(kind) if spm else make(kind)
        t.save(f"tok_{kind}.json", pretty=False)
        for plain in (False, True):
            t.encode_special_tokens = plain
            ids = t.encode(s, add_special_tokens=False).ids
            assert spm or t.decode(ids, skip_special_tokens=False) == (nfc if kind.startswith("qwen") else s)
            write_ids(f"tok_{kind}{'_plain' if plain else ''}.i32", ids)


main(sys.argv[1:])
