"""Prints the size and the shape of the C++ and CUDA code in dtopp/ and cli/.

usage: measure.py [--build]     --build also times a clean release build of the target dtopp, without ccache"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import time

import check_language

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/measure"


def sources():
    return sorted(path for top in ("dtopp", "cli") for kind in ("h", "cpp", "cu") for path in (ROOT / top).rglob(f"*.{kind}"))


def include_edges(texts, depth=None):
    """Number of includes per pair of different folders. `depth` limits the parts of a folder's path."""
    edges = collections.Counter()
    for path, text in texts.items():
        folder = path.relative_to(ROOT).parent.parts[:depth]
        for include in re.findall(r'^#include "((?:dtopp|cli)/[^"]+)"', text, re.M):
            target = pathlib.PurePath(include).parent.parts[:depth]
            if target != folder:
                edges[folder, target] += 1
    return edges


def headers_of_one(texts):
    """The headers that at most one file includes, beside the source of the same name."""
    users = collections.Counter()
    for path, text in texts.items():
        for include in set(re.findall(r'^#include "((?:dtopp|cli)/[^"]+)"', text, re.M)):
            users[include] += pathlib.PurePath(include).with_suffix("") != path.relative_to(ROOT).with_suffix("")
    return [path for path in texts if path.suffix == ".h" and users[str(path.relative_to(ROOT))] <= 1]


def build_seconds():
    shutil.rmtree(BUILD, ignore_errors=True)
    subprocess.run(["cmake", "--preset", "release", "-B", BUILD], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    begin = time.monotonic()
    subprocess.run(["cmake", "--build", BUILD, "--target", "dtopp", "-j", str(len(os.sched_getaffinity(0)))], check=True,
                   env=os.environ | {"CCACHE_DISABLE": "1"}, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begin
    shutil.rmtree(BUILD, ignore_errors=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", action="store_true", help="time a clean build")
    options = parser.parse_args()
    texts = {path: path.read_text() for path in sources()}
    folders = collections.Counter(path.parent.relative_to(ROOT) for path in texts)
    largest, most = folders.most_common(1)[0]
    blocks = [block for path in texts for _, block in check_language.blocks_of(path)]
    openers = sum(kind == "opener" for block in blocks for kind, _ in check_language.problems_of(block, is_page=False))
    lengths = [text.count("\n") for text in texts.values()]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.count("\n")
    rows = [("lines", sum(lengths)),
            ("files", len(texts)),
            ("files under 60 lines", sum(length < 60 for length in lengths)),
            ("headers with at most one user", len(headers_of_one(texts))),
            ("tracked files of the repository", tracked),
            ("folders", len(folders)),
            ("files in the largest folder", f"{most} ({largest})")]
    for name, edges in (("folders", include_edges(texts)), ("top-level folders", include_edges(texts, depth=2))):
        rows += [(f"includes between {name}", edges.total()), (f"pairs of {name}", len(edges))]
    rows += [("std::function<", sum(text.count("std::function<") for text in texts.values())),
             ("comment blocks", len(blocks)),
             ("noun-clause openers", openers)]
    if options.build:
        rows.append(("seconds of a clean build", round(build_seconds())))
    for name, value in rows:
        print(f"| {name:<35} | {value!s:>20} |")


if __name__ == "__main__":
    main()
