"""Measures several ranks on this machine: the bytes that rank 0 sends per step against `dtopp plan`'s mean
rank, its waiting time, its memory, and the cost of a fixed order of sums (parallel.reproducible true against
false).

Ranks share the machine's cores, so no speed-up is measured or printed. The ratio of a step to that of one
rank with as many threads in all gives the cost of communication over a network as fast as memory. Prints one
JSON line per case.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 128, "num_experts": 16, "vocab_size": 8192,
         "sequence_length": 256}
GRIDS = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)]  # ranks, ranks that share experts


def write_tokens(folder, count=400_000):
    import numpy
    folder.mkdir()
    numpy.save(folder / "tokens.npy", numpy.random.default_rng(1).integers(0, 8192, count, dtype=numpy.uint16))
    return folder / "tokens.npy"


def write_config(path, tokens, steps):
    path.write_text(yaml.safe_dump({
        "model": MODEL, "routing": {"method": "dtop_p", "experts": [4]},
        "data": {"train": [str(tokens)]},
        "optimizer": {"warmup_steps": 1},
        "training": {"steps": steps, "global_batch_size": 16, "micro_batch_size": 2, "precision": "fp32", "threads": 1},
        "validation": {"every": 0}, "checkpoint": {"every": 0}, "logging": {"tensorboard": False}}))
    return path


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(binary, config, folder, ranks, shared, reproducible):
    overrides = [f"parallel.expert_parallel={shared}", f"parallel.reproducible={str(reproducible).lower()}"]
    before = cpu_seconds()
    subprocess.run([binary, "train", config, *overrides, f"output={folder}", "--processes", str(ranks)], check=True,
                   capture_output=True)
    used = cpu_seconds() - before
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]
    plan = json.loads(subprocess.run([binary, "plan", config, *overrides, "--ranks", str(ranks), "--json"], check=True,
                                     capture_output=True, text=True).stdout)
    planned = sum(sent["inside"] + sent["between"] for sent in plan["wire_bytes"].values())
    tokens = 16 * MODEL["sequence_length"]
    case = {"ranks": ranks, "expert_parallel": shared, "reproducible": reproducible,
            "step_seconds": round(statistics.median(tokens / line["throughput/tokens_per_second"] for line in lines), 3),
            "cpu_seconds": round(used, 3),  # of all ranks, from their start to their end
            "peak_bytes": lines[-1]["memory/peak_bytes"], "planned_peak_bytes": plan["memory_bytes"]["total"]}
    if ranks > 1:
        sent = statistics.mean(line["comm/bytes"] for line in lines)
        case |= {"sent_bytes": round(sent), "planned_bytes": planned, "sent_ratio": round(sent / planned, 3),
                 "exposed_share": round(statistics.median(line["comm/exposed_share"] for line in lines), 3)}
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--binary", default=ROOT / "build/release/bin/dtopp")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = write_config(folder / "run.yaml", write_tokens(folder / "data"), args.steps)
        for ranks, shared in GRIDS:
            for reproducible in (True, False):
                name = folder / f"run-{ranks}-{shared}-{reproducible}"
                print(json.dumps(run(args.binary, config, name, ranks, shared, reproducible)), flush=True)


if __name__ == "__main__":
    main()
