"""Measures how a training step's time, processor time and peak memory grow with one quantity, around hidden 128, 2 layers, 16 experts of
64, 4 active, vocabulary 4,096 and 4 x 512 tokens; fp32, DTop-p with a solved threshold.

The sizes of a quantity train in processes of their own. They take turns, and all but one are stopped (SIGSTOP). For each round,
a + b * size^k, with the least relative errors, gives the exponent k of the growing part. The law's exponent is that of the FLOPs and
bytes that a step needs. With threads, processor time must not grow. Ranks share the cores and a fixed batch (ranks.py), so only their
processor time counts: the sum of gradients grows as the number of ranks. `dtopp plan` extends them to 1,024 ranks with a fixed
batch per rank: seconds per step on H100, bytes that a rank sends and its memory.

The default is one thread, because processor time then does not depend on other work. Prints one JSON line per quantity, and a Markdown
table to standard error.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile

import numpy as np
import ranks
from training_side import BINARY, language_run, plan, start_dtopp, without_pauses

CENTER = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "ffn_hidden_size": 64, "num_experts": 16, "active": 4,
          "vocab_size": 4096, "sequence_length": 512, "batch": 4}
# The law's exponent and the keys that change, per size.
QUANTITIES = {
    "tokens per step": (1, {n: {"batch": n // 512} for n in (1024, 4096, 16384, 65536)}),
    "experts": (1, {n: {"num_experts": n} for n in (8, 32, 128, 512, 1024)}),
    "active experts": (1, {n: {"num_experts": 64, "active": n} for n in (1, 4, 16, 32)}),
    "sequence length": (1, {n: {"sequence_length": n, "batch": 16384 // n} for n in (512, 2048, 8192, 16384)}),
    "layers": (1, {n: {"num_layers": n} for n in (1, 4, 16, 32)}),
    "vocabulary": (1, {n: {"vocab_size": n} for n in (1024, 8192, 50432, 200000)}),
    "threads": (-1, {n: {"threads": n} for n in (1, 2)}),
}
RANKS = (1, 2, 4, 8)
PLANNED_RANKS = (8, 64, 512, 1024)
KINDS = {
    "dense": {"method": "dense", "hidden_size": 256, "ffn_hidden_size": 512, "num_layers": 8, "batch": 16},
    "top_k, large vocabulary": {"method": "top_k", "hidden_size": 256, "vocab_size": 50432},
    "bf16": {"precision": "bf16", "hidden_size": 256, "num_layers": 8, "batch": 16, "sequence_length": 1024},
    "micro-batches": {"micro_batch": 4, "batch": 16, "num_experts": 64, "active": 8},
}


def exponent(sizes, costs):
    """k of a + b * size^k with a, b >= 0; 0 for costs that grow by less than 2 %. Two sizes have no a."""
    sizes, costs = np.array(sizes) / sizes[-1], np.array(costs)
    if len(sizes) == 2:
        return float(np.log(costs[0] / costs[1]) / np.log(sizes[0]))
    if costs[-1] < 1.02 * costs[0]:
        return 0.0

    def fitted(k):
        columns = np.stack([np.ones_like(costs), sizes ** k], 1) / costs[:, None]
        ways = [np.linalg.lstsq(columns[:, used], np.ones_like(costs)) for used in ([0, 1], [1])]
        return min(float(((columns[:, used] @ way[0] - 1) ** 2).sum()) for used, way in zip(([0, 1], [1]), ways) if min(way[0]) >= 0)

    return float(min(np.arange(0, 3, 0.01), key=fitted))


def start(change, args, folder):
    case = CENTER | change
    method, precision, threads = case.pop("method", "solve"), case.pop("precision", "fp32"), case.pop("threads", args.threads)
    return start_dtopp(case, method, precision, threads, folder)


def measure(changes, args, folder):
    """Per size: the seconds and the processor seconds of a step per round, active experts, peak and plan's memory."""
    with contextlib.ExitStack() as running:
        sides = {size: running.enter_context(start(change, args, folder / str(size))) for size, change in changes.items()}
        rates = {size: side.steps(1)[0]["throughput/tokens_per_second"] for size, side in sides.items()}
        taken, cpu = ({size: [] for size in sides} for _ in range(2))
        for _ in range(args.rounds):
            for size, side in sides.items():
                tokens = (CENTER | changes[size])["batch"] * (CENTER | changes[size])["sequence_length"]
                before, done = side.cpu_seconds(), len(side.read())
                steps = side.steps(min(max(2, int(args.seconds * rates[size] / tokens)), 60))
                cpu[size].append((side.cpu_seconds() - before) / (len(side.read()) - done))
                taken[size].append(statistics.median(tokens / step["throughput/tokens_per_second"] for step in steps))
        return {"seconds": taken, "cpu_seconds": cpu,
                "active_experts": {size: round(side.read()[-1].get("moe/active_experts", 0), 2) for size, side in sides.items()},
                "peak_bytes": {size: side.peak_bytes() for size, side in sides.items()},
                "planned_bytes": {size: plan(folder / str(size) / "run.yaml")["memory_bytes"]["total"] for size in sides}}


def measure_ranks(folder):
    """As measure(), for one round."""
    tokens = ranks.write_tokens(folder / "data")
    found = {"seconds": {}, "cpu_seconds": {}, "peak_bytes": {}, "planned_bytes": {}}
    for count in RANKS:
        few, many = (ranks.run(BINARY, ranks.write_config(folder / "run.yaml", tokens, steps), folder / f"{count}-{steps}", count, 1, True)
                     for steps in (2, 8))
        found["seconds"][count] = [many["step_seconds"]]
        found["cpu_seconds"][count] = [(many["cpu_seconds"] - few["cpu_seconds"]) / 6]
        found["peak_bytes"][count], found["planned_bytes"][count] = many["peak_bytes"], many["planned_peak_bytes"]
    return found


def planned_ranks(folder):
    path = without_pauses(language_run({**CENTER, "batch": 4}, "solve", "bf16", 1, folder / "plan"), folder / "plan")
    plans = {count: plan(path, "--ranks", count, "--nodes", count // 8, "--device", "h100", f"training.global_batch_size={4 * count}")
             for count in PLANNED_RANKS}
    return {"seconds": {count: [planned["step_seconds"]] for count, planned in plans.items()},
            "sent_bytes": {count: [planned["wire_bytes_per_step"]] for count, planned in plans.items()},
            "planned_bytes": {count: planned["memory_bytes"]["total"] for count, planned in plans.items()}}


def fitted(rounds):
    """[the mean of the exponent over rounds, its standard error]"""
    found = [exponent(list(rounds), costs) for costs in zip(*rounds.values())]
    return [round(statistics.mean(found), 3), round(statistics.stdev(found) / len(found) ** 0.5, 3) if len(found) > 1 else None]


def report(name, law, found):
    line = {"case": "growth", "grows": name, "law": law}
    for key, values in found.items():
        per_round = isinstance(next(iter(values.values())), list)
        line[key] = {size: float(f"{statistics.median(value):.5g}") if per_round else value for size, value in values.items()}
        if law is not None and key not in ("active_experts", "planned_bytes") and (name, key) != ("ranks", "seconds"):
            line[f"{key}_exponent"] = fitted(values if per_round else {size: [value] for size, value in values.items()})
    print(json.dumps(line), flush=True)
    return line


def cell(values, factor=1):
    numbers = [(value[0] if isinstance(value, list) else value) * factor for value in values.values()]
    return " / ".join(f"{number:,.0f}" if number >= 10 else f"{number:.3g}" for number in numbers)


def markdown(lines):
    rows = ["| what grows | sizes | step, ms | processor, ms | law | exponent of time | of processor time | peak, MB | of peak |",
            "|---|---|---|---|---|---|---|---|---|"]
    for line in lines:
        sizes = line["seconds"]
        exponents = [" ± ".join(f"{part:.2f}" for part in line.get(f"{key}_exponent", []) if part is not None) or "–"
                     for key in ("seconds", "cpu_seconds", "peak_bytes")]
        cells = [line["grows"], " / ".join(f"{size:,}" if isinstance(size, int) else size for size in sizes), cell(sizes, 1e3),
                 cell(line.get("cpu_seconds", {}), 1e3), str(line["law"]), *exponents[:2], cell(line.get("peak_bytes", line["planned_bytes"]), 1e-6),
                 exponents[2]]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*QUANTITIES, "ranks", "ranks (plan)", "other kinds"]
    parser.add_argument("--only", nargs="+", choices=names, default=names[:-1], metavar="QUANTITY", help=f"of {', '.join(names)}; default: all but the last")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1, help="per size and round; at least two steps")
    parser.add_argument("--threads", type=int, default=1, help="with one, processor time does not include waiting for other threads")
    args = parser.parse_args()
    lines = []
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if name in QUANTITIES:
                law, changes = QUANTITIES[name]
                found = measure(changes, args, folder)
            elif name == "ranks":
                law, found = 1, measure_ranks(folder)
            elif name == "other kinds":
                law, found = None, measure(KINDS, args, folder)
            else:
                law, found = 0, planned_ranks(folder)
        lines.append(report(name, law, found))
    print(markdown(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
