#!/usr/bin/env python3
"""Collect the text that the small pair is trained on: Python sources and rendered manual pages of Debian packages.

usage: make_corpus.py [--cache DIR] [--table FILE] OUT_DIR

Reads the package list from the first two columns of FILE (default: packages.tsv beside this script), downloads each package
with apt-get into DIR (default: OUT_DIR/debs), unpacks it in memory, and writes

    OUT_DIR/train.json, OUT_DIR/test.json   [[kind, "package:path", text], ...]   kind is "python" or "manual"
    OUT_DIR/packages.tsv                    the list with versions, licences (from each copyright file), files and bytes used

A file goes to test.json when the hash of its name says so: 2 % of the files, the same ones in every run. Files whose text
differs only in blanks and digits are kept once. Needs Debian 12 with apt sources for main, and mandoc. No package is installed.
"""
import argparse
import csv
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tarfile

HELD_OUT = 0.02
SMALLEST, LARGEST = 300, 300_000  # bytes of one file: stubs below, tables of data above
WIDEST_MEAN = 80                  # mean length of a line: generated or minified text above
FEWEST_LETTERS = 0.35             # share of letters among the characters: tables of numbers below
PAGE_WIDTH = 78
MANUAL_PATH = re.compile(r"\./usr/share/man/man[1-9][a-z]*/[^/]+\.gz$")
KNOWN_LICENCES = (  # for copyright files that are prose: what to look for, and the short name
    ("GNU Lesser General Public", "LGPL"), ("GNU Library General Public", "LGPL"), ("GNU Affero", "AGPL"),
    ("GNU General Public License", "GPL"), ("GPL", "GPL"), ("GNU Free Documentation", "GFDL"),
    ("Apache License", "Apache-2.0"), ("Mozilla Public", "MPL"), ("Artistic", "Artistic"),
    ("Redistribution and use in source and binary forms", "BSD"), ("BSD", "BSD"),
    ("Permission is hereby granted, free of charge", "MIT"), ("Permission to use, copy, modify", "permissive"),
    ("Permission to use, copy and modify", "permissive"), ("PSF", "PSF"), ("verbatim copies", "verbatim"),
    ("authors hereby grant permission", "Tcl/Tk (BSD style)"), ("copyrighted by the Regents", "Tcl/Tk (BSD style)"),
    ("public domain", "public-domain"), ("Public Domain", "public-domain"))
ELSEWHERE = {"net-snmp": "BSD (copyright file in libsnmp-base)"}  # by source: the file is in a package that is not in the list


def download(packages, cache):
    """-> {package: path of its .deb}; packages already in cache are not fetched again."""
    os.makedirs(cache, exist_ok=True)
    have = {f.split("_")[0] for f in os.listdir(cache) if f.endswith(".deb")}
    missing = [p for p in packages if p not in have]
    if missing:
        subprocess.run(["apt-get", "download", "-q"] + missing, cwd=cache, check=True, stdout=subprocess.DEVNULL)
    paths = {f.split("_")[0]: os.path.join(cache, f) for f in sorted(os.listdir(cache)) if f.endswith(".deb")}
    absent = [p for p in packages if p not in paths]
    if absent:
        sys.exit("make_corpus.py: apt-get delivered no file for: " + " ".join(absent))
    return {p: paths[p] for p in packages}


def licences(text):
    """Short licence names of a Debian copyright file, most frequent first; none for an empty text."""
    if not text:
        return []
    names = re.findall(r"^License: *(\S[^\n]*)", text, re.M)
    if not names:
        names = [short for phrase, short in KNOWN_LICENCES if phrase in text]
        return list(dict.fromkeys(names)) or ["see its copyright file"]
    names = [n.split(",")[0].strip() for n in names]
    names = ["permissive" if n.startswith("Permission") else n for n in names]
    names = [n for n in names if len(n) <= 60 and not n.startswith(("Redistribution", "This ", "By ")) and n[-1] != ":"]
    if "PYTHON SOFTWARE FOUNDATION LICENSE" in text:
        names += ["PSF-2"] * len(names + [0])
    return sorted(set(names), key=lambda n: (-names.count(n), n))[:6]


def render(source):
    """A manual page's source (bytes) -> plain text, or None where mandoc finds nothing to show."""
    if source.lstrip().startswith(b".so "):
        return None
    page = subprocess.run(["mandoc", "-T", "utf8", "-O", "width=%d" % PAGE_WIDTH], input=source, capture_output=True).stdout
    text = re.sub(r".\x08", "", page.decode("utf-8", "replace"))
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n") + "\n"


def usable(text):
    size = len(text.encode())
    if not SMALLEST <= size <= LARGEST or "\ufffd" in text or "\x00" in text:
        return False
    lines = text.count("\n") + 1
    letters = sum(c.isalpha() for c in text)
    return len(text) / lines <= WIDEST_MEAN and letters / len(text) >= FEWEST_LETTERS


def source_of(path):
    fields = subprocess.run(["dpkg-deb", "-f", path, "Source", "Package"], capture_output=True, text=True, check=True).stdout
    return fields.replace("Package:", "Source:").split("Source:")[1].split()[0]


def read_package(job):
    """One package -> (table row, source package, [(kind, name, text)])."""
    kind, package, path = job
    version = subprocess.run(["dpkg-deb", "-f", path, "Version"], capture_output=True, text=True, check=True).stdout.strip()
    unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE)
    found, copyright_text = [], ""
    with tarfile.open(fileobj=unpack.stdout, mode="r|") as archive:
        for member in archive:
            if not member.isreg():
                continue
            name = member.name
            if name.startswith("./usr/share/doc/") and "/copyright" in name:
                copyright_text += archive.extractfile(member).read().decode("utf-8", "replace")
            elif kind == "python" and name.endswith(".py"):
                found.append((name, archive.extractfile(member).read().decode("utf-8", "replace")))
            elif kind == "manual" and MANUAL_PATH.match(name):
                source = gzip.GzipFile(fileobj=io.BytesIO(archive.extractfile(member).read())).read()
                found.append((name, render(source)))
    unpack.wait()
    kept = [(kind, package + ":" + name[2:], text) for name, text in found if text and usable(text)]
    return (kind, package, version, ", ".join(licences(copyright_text))), source_of(path), kept


def fingerprint(text):
    return hashlib.sha256(re.sub(r"[\s\d]+", "", text).encode()).digest()


def held_out(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < HELD_OUT * 2 ** 64


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    arguments = argparse.ArgumentParser(description="Collect the training text of the small pair.")
    arguments.add_argument("out_dir")
    arguments.add_argument("--cache")
    arguments.add_argument("--table", default=os.path.join(here, "packages.tsv"))
    options = arguments.parse_args()
    with open(options.table, newline="") as f:
        wanted = [row[:2] for row in csv.reader(f, delimiter="\t") if row and row[0] in ("python", "manual")]
    paths = download(sorted({p for _, p in wanted}), options.cache or os.path.join(options.out_dir, "debs"))
    jobs = [(kind, package, paths[package]) for kind, package in wanted]
    seen, rows, by_source, split = set(), [], {}, {"train": [], "test": []}
    with multiprocessing.Pool(2) as pool:
        for row, source, documents in pool.imap(read_package, jobs):
            if row[3]:
                by_source.setdefault(source, row[3])
            files = size = 0
            for kind, name, text in documents:
                key = fingerprint(text)
                if key in seen:
                    continue
                seen.add(key)
                split["test" if held_out(name) else "train"].append([kind, name, text])
                files, size = files + 1, size + len(text.encode())
            rows.append((source, *row, files, size))
    os.makedirs(options.out_dir, exist_ok=True)
    for name, documents in split.items():
        with open(os.path.join(options.out_dir, name + ".json"), "w") as f:
            json.dump(documents, f, ensure_ascii=False)
    with open(os.path.join(options.out_dir, "packages.tsv"), "w", newline="") as f:
        table = csv.writer(f, delimiter="\t", lineterminator="\n")
        table.writerow(("kind", "package", "version", "licences", "files", "bytes"))
        for source, kind, package, version, licence, files, size in rows:  # some share their copyright file with a sibling
            licence = licence or by_source.get(source) or ELSEWHERE.get(source, "see its copyright file")
            table.writerow((kind, package, version, licence, files, size))
    for kind in ("python", "manual"):
        for name, documents in split.items():
            sizes = [len(d[2].encode()) for d in documents if d[0] == kind]
            print("%s %s: %d files, %.1f MB" % (kind, name, len(sizes), sum(sizes) / 1e6))


if __name__ == "__main__":
    main()
