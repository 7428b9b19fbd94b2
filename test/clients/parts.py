"""parts.py - what http.py makes of text that comes in pieces: however it is cut, the same thought and answer.

usage: python3 test/clients/parts.py HTTP.PY        exit status 0, or 1 with what differed
"""
import importlib.util
import random
import sys

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("http_front", sys.argv[1])
front = importlib.util.module_from_spec(spec)
spec.loader.exec_module(front)

CASES = [  # split, thinks, stops, text, stopped, thought, answer
    (False, False, [], "a <think> b", None, "", "a <think> b"),
    (True, False, [], "<think>\nwhy\n\n</think>\n\nso", None, "why", "so"),
    (True, False, [], "\n<think>why</think>so\n", None, "why", "so\n"),
    (True, False, [], "<think>\n\n</think>\n\nso", None, "", "so"),
    (True, True, [], "\nwhy <thin\n</think>\n\nso", None, "why <thin", "so"),
    (True, True, [], "why, and no end\n", None, "why, and no end\n", ""),
    (True, False, [], "so <think> it", None, "", "so <think> it"),
    (True, False, [], "<thin", None, "", "<thin"),
    (True, False, ["END", "E"], "a bEND", "E", "", "a b"),
    (False, False, ["END"], "a EN ENEND c", "END", "", "a EN EN"),
    (False, False, ["END"], "a EN", None, "", "a EN"),
    (True, True, ["\n\n"], "why\n\nso", "\n\n", "why", ""),
]


def pieces(text, draw):
    while text:
        n = draw.randint(1, 5)
        yield text[:n]
        text = text[n:]


def run(case, draw):
    split, thinks, stops, text, stopped, thought, answer = case
    parts, got = front.Parts(list(stops), split, thinks), {"reasoning_content": "", "content": ""}
    whole = list(pieces(text, draw))
    for piece in whole:
        for kind, out in parts.add(piece):
            got[kind] += out
    for kind, out in parts.add("", True, stopped):
        got[kind] += out
    return got == {"reasoning_content": thought, "content": answer}, got


bad = 0
for case in CASES:
    for seed in range(200):
        good, got = run(case, random.Random(seed))
        if not good:
            print(f"{case}: seed {seed}: {got}")
            bad += 1
            break
sys.exit(bool(bad))
