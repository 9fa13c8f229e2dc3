#!/usr/bin/env python3
"""Times `dtopp prepare images` against its decoders alone, on as many threads, in turn on the same pictures.

Prints one JSON line per case with medians over rounds in pictures per second. `decode` decodes all of a tar
from memory and discards the pixels; `prepare` is the whole way from tar to files. `share` is their ratio.
`cpu_share` is the ratio of their processor times, which is valid even if other work shares the machine. Needs
the target image_benchmark.

Usage: .venv/bin/python benchmarks/prepare_images.py [--workers N] [--rounds N] [--output DIR]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
CIFAR10 = ROOT / "data/raw/cifar10/train.tar"  # from scripts/get_data.py images cifar10
sys.path.insert(0, str(ROOT / "tests/python/support"))
from image_files import encoded, photograph, write_tar  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", help="output folder (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.output) as folder:
        folder = pathlib.Path(folder)
        photographs = [encoded(photograph(i, 500, 375), "JPEG", quality=92) for i in range(100)]
        tar = write_tar(folder / "photographs.tar", {f"x/{i:04}.jpg": photographs[i % 100] for i in range(800)})
        cases = [("photographs 500 x 375 to 64 x 64", tar, 64), ("photographs 500 x 375 to 256 x 256", tar, 256)]
        if CIFAR10.exists():
            cases.insert(0, ("CIFAR-10, 32 x 32", CIFAR10, 0))
        for name, source, size in cases:
            done = subprocess.run([ROOT / "build/release/bin/image_benchmark", source, str(size), str(arguments.workers),
                                   str(arguments.rounds), folder / "out"], stdout=subprocess.PIPE, check=True, text=True)
            rounds = [json.loads(line) for line in done.stdout.splitlines()]
            print(json.dumps({"benchmark": "prepare images", "case": name, "workers": arguments.workers,
                              "decode": round(statistics.median(r["decode"] for r in rounds)),
                              "prepare": round(statistics.median(r["prepare"] for r in rounds)),
                              "share": round(statistics.median(r["prepare"] / r["decode"] for r in rounds), 3),
                              "cpu_share": round(statistics.median(r["cpu_share"] for r in rounds), 3)}), flush=True)


if __name__ == "__main__":
    main()
