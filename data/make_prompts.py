#!/usr/bin/env python3
"""Write the prompts of classes that the field reports by: code, maths, prose, chat, edit, needle; three of each, six of edit.

usage: make_prompts.py PROMPTS

PROMPTS holds python-*.txt and manual-*.txt (measure_pair.py prompts). edit and needle are made of these; the other classes of what
stands below, written for this script, and of numbers that a generator of fixed seeds draws. The same files come out every time.
code: a module that goes on. maths: problems with solutions, the last one open. prose: a text that goes on. chat: turns, the last
answer open. edit: a text again with one change. needle: a pass key among held-out text, as the pair's target was trained to find.
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

CODE = [
    '''"""Sorting and searching."""


def quicksort(items):
    """Return a sorted copy of items."""
    if len(items) < 2:
        return list(items)
    pivot = items[len(items) // 2]
    below = [x for x in items if x < pivot]
    equal = [x for x in items if x == pivot]
    above = [x for x in items if x > pivot]
    return quicksort(below) + equal + quicksort(above)


def bisect(items, x):
    """Return the first index whose item is not below x. Items must be sorted."""
''',
    '''"""Counting words in files."""
import argparse
import collections
import sys


def count_words(lines):
    """Return a Counter of the words in lines, in lower case."""
    counts = collections.Counter()
    for line in lines:
        counts.update(line.lower().split())
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="files to read")
    parser.add_argument("-n", "--number", type=int, default=10, help="words to print")
    options = parser.parse_args()
''',
    '''class Queue:
    """A queue of bounded length over a list."""

    def __init__(self, size):
        self.items = [None] * size
        self.first = 0
        self.count = 0

    def __len__(self):
        return self.count

    def put(self, item):
        """Add an item at the end. Raise IndexError where there is no room."""
        if self.count == len(self.items):
            raise IndexError("the queue is full")
        self.items[(self.first + self.count) % len(self.items)] = item
        self.count += 1

    def get(self):
        """Remove the first item and return it. Raise IndexError where there is none."""
''',
]

PROSE = [
    """The harbour froze early that year. By the second week of November the smaller boats were locked in a grey
plate of ice, and the men who owned them walked out each morning with poles and hammers to keep a ring of
water open around the hulls. Nobody spoke of it as work. It was what one did between coffee and daylight, as
one feeds a stove. The ferry still came on Tuesdays, with a noise that could be heard for an hour before it
rounded the point, and on those days the children were let out of school to see
""",
    """A library is a memory with a door. What is kept in it is not what its founders thought worth keeping, for
tastes change, and roofs leak, and most books are lost to neither fire nor water but to the patience of people
who need the shelf. What is left after two hundred years is therefore an accident, and the historian who leans
on it leans on an accident. There are three ways to deal with this. The first is to count what is there and to
say no more. The second is to ask what is missing, and why. The third
""",
    """Bread begins with waiting. Flour and water alone, left in a bowl in a warm room, will be alive within days,
since the grain brings its own yeasts and the air adds others. The baker does not make this happen; the baker
keeps it from going wrong. Too warm, and it turns sour before it has strength; too cold, and it sleeps. Once a
day half of it is thrown away and replaced with fresh flour and water. On the fifth day it smells of apples. On
the seventh it
""",
]

CHAT = [
    [("What is a hash table?",
      "It is an array whose index is computed from a key by a hash function. A look-up takes constant time on average."),
     ("And when two keys have the same index?",
      "That is a collision. Either every place of the array holds a list, or the next free place is taken."),
     ("Which of the two is faster in practice?", None)],
    [("Write a command that prints the ten largest files below a folder.",
      "find DIR -type f -printf '%s %p\\n' | sort -rn | head -n 10"),
     ("Only those that were changed in the last week, please.",
      "find DIR -type f -mtime -7 -printf '%s %p\\n' | sort -rn | head -n 10"),
     ("And with the sizes in mebibytes?", None)],
    [("I have two hours in a town that I do not know. What should I do?",
      "Walk to the market first, then to the river. A town shows what it eats and what it is built on."),
     ("It is raining.", "Then look for the library or the railway station: both have a roof, and both are full of people."),
     ("I am hungry too. Give me a plan for the two hours.", None)],
]


class Draw:
    """Numbers from a seed, the same in every version of Python: xorshift, 32 bits."""

    def __init__(self, seed):
        self.state = seed * 2654435761 % 2 ** 32 or 1

    def between(self, low, high):
        x = self.state
        x ^= x << 13 & 0xffffffff
        x ^= x >> 17
        x ^= x << 5 & 0xffffffff
        self.state = x
        return low + x % (high - low + 1)


def maths(draw):
    """Four problems of one kind each in some order, solved step by step but for the last."""
    def boxes():
        n, k, left = draw.between(3, 12), draw.between(4, 24), draw.between(2, 9)
        return (f"A shop has {n} boxes with {k} pencils each and {left} loose ones. How many pencils has it?",
                f"{n} boxes hold {n} * {k} = {n * k} pencils. With the loose ones there are {n * k} + {left} = {n * k + left}.")

    def train():
        v, h = draw.between(6, 24) * 5, draw.between(2, 7)
        return (f"A train goes {v} km an hour for {h} hours. How far does it get?",
                f"Distance is speed times time: {v} * {h} = {v * h}. It gets {v * h} km far.")

    def equation():
        a, x, b = draw.between(2, 9), draw.between(2, 15), draw.between(1, 30)
        return (f"Solve {a}x + {b} = {a * x + b}.",
                f"Subtract {b}: {a}x = {a * x}. Divide by {a}: x = {x}.")

    def mean():
        m, d = draw.between(20, 60), draw.between(2, 9)
        return (f"What is the mean of {m - d}, {m} and {m + d}?",
                f"The sum is {m - d} + {m} + {m + d} = {3 * m}. Divided by 3 that is {m}.")

    kinds = [boxes, train, equation, mean]
    for i in range(3, 0, -1):
        k = draw.between(0, i)
        kinds[i], kinds[k] = kinds[k], kinds[i]
    out = ""
    for i, kind in enumerate(kinds + kinds[:1]):
        problem, solution = kind()
        out += f"Problem: {problem}\nSolution:" + (f" {solution}\n\n" if i < 4 else "")
    return out


def needle(draw, text, size):
    """A piece of text of about size bytes, whole lines, with three pass keys planted; one of them is asked for at the end."""
    names = ["alpha", "bravo", "delta", "kilo", "lima", "oscar", "sierra", "tango", "victor", "zulu"]
    lines = text.split("\n")
    first = draw.between(0, len(lines) // 4)
    piece, n = [], 0
    for line in lines[first:]:
        if n > size:
            break
        piece.append(line)
        n += len(line) + 1
    keys = []
    for i in range(3):
        name = names.pop(draw.between(0, len(names) - 1))
        keys.append((name, draw.between(10000, 99999)))
        piece.insert(draw.between(0, len(piece)), f"\nNote: the pass key of {name} is {keys[-1][1]}.")
    name = keys[draw.between(0, 2)][0]
    return "\n".join(piece) + f"\n\nQuestion: what is the pass key of {name}?\nAnswer: the pass key of {name} is"


def edit(lines, again, old, new):
    """A model this small follows no instruction, so the prompt is what few-shot prompts are: the text twice, then its beginning
    with the change. What goes on is the rest of the text."""
    text, head = "\n".join(lines) + "\n", "\n".join(lines[:again]) + "\n"
    assert head.count(old) == 1, head
    return (text + "\n") * 2 + head.replace(old, new)


def main(folder):
    def read(name):
        with open(f"{folder}/{name}.txt", encoding="utf-8", newline="") as f:
            return f.read()

    made = {}
    for i in range(3):
        made[f"code-{i + 1}"] = CODE[i]
        made[f"maths-{i + 1}"] = maths(Draw(i + 1))
        made[f"prose-{i + 1}"] = PROSE[i].rstrip("\n")
        made[f"chat-{i + 1}"] = "".join(f"User: {q}\nAssistant:" + (f" {a}\n" if a else "") for q, a in CHAT[i])
        source = ("python-8-long", "manual-8-long", "manual-7-medium")[i]
        made[f"needle-{i + 1}"] = needle(Draw(11 + i), read(source), 900)
    for name, prompt, first, n, again, old, new in EDITS:
        made[name] = edit(read(prompt).split("\n")[first:first + n], again, old, new)
    for name, text in made.items():
        with open(f"{folder}/{name}.txt", "w", encoding="utf-8", newline="") as f:
            f.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
