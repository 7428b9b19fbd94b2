#!/usr/bin/env python3
"""Write the editing prompts, prompts/edit-*.txt, from the other prompts.

usage: make_edits.py PROMPTS

Each asks for a text again with one change. A model this small follows no instruction, so the prompt is what
few-shot prompts are: the text twice, then its beginning with the change. What goes on is the rest of the text.
EDITS is the list: lines of a prompt, how many of them begin it again, and what is changed there.
"""
import sys

EDITS = [  # name, prompt, first line, lines, lines that begin it again, old, new
    ("edit-python-1", "python-7-medium", 0, 17, 6, "256", "300"),
    ("edit-python-2", "python-8-long", 108, 14, 9, "sphinx.ext.autodoc", "sphinx.ext.coverage"),
    ("edit-python-3", "python-8-long", 0, 16, 6, "docutils", "doxygen"),
    ("edit-manual-1", "manual-8-long", 72, 15, 5, "group GROUP", "group NAME"),
    ("edit-manual-2", "manual-7-medium", 18, 16, 7, "per-node", "per-host"),
    ("edit-manual-3", "manual-8-long", 36, 18, 5, "similarly", "likewise"),
]


def main(folder):
    for name, prompt, first, n, again, old, new in EDITS:
        with open(f"{folder}/{prompt}.txt", encoding="utf-8", newline="") as f:
            lines = f.read().split("\n")[first:first + n]
        text, head = "\n".join(lines) + "\n", "\n".join(lines[:again]) + "\n"
        assert head.count(old) == 1, name
        with open(f"{folder}/{name}.txt", "w", encoding="utf-8", newline="") as f:
            f.write((text + "\n") * 2 + head.replace(old, new))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
