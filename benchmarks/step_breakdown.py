"""Shows the parts of a training step's time: `perf record` over a run of training_step.py's case (hidden 512,
8 layers, 64 experts of 256, 8 active, vocabulary 50,432, 4 x 1024 tokens) or of a case of diffusion_step.py.
Samples are grouped by the function at the top. Needs Linux's perf. Prints one JSON line: percent of the
samples by part, and tokens/s.
"""

import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import diffusion_step
import training_side
from training_step import FULL

PARTS = {  # the first match counts
    "matrix products": r"VectorTiles.*multiply<|brgemm|multiply_block|sgemm_kernel|gemm",
    "packing operands": r"pack_|transpose|scopy",
    "softmax of attention": r"(Forward|Backward)Heads|flash_attention|Sleef",
    "activation, gates, scatter": r"backward_block|activate|scatter_add",
    "logits to loss and gradient": r"form_logits|form_gradient|sum_x_gradient|add_logits",
    "routing": r"route_",
    "optimizer": r"adam",
    "norms, RoPE, residuals, copies": r"at::native|c10::function_ref|LayerNorm|RowwiseMoments|reduced_float_copy|TensorIterator"
                                     r"|cascade_sum|memcpy|memmove|memset|serial_for_each|invoke_parallel",
    "threads waiting": r"libgomp|gomp_|futex|sched",
    "fresh memory": r"clear_page|page_fault|folio|do_anonymous|madvise|mm_",
}


def part_of(line):
    for name, pattern in PARTS.items():
        if re.search(pattern, line):
            return name
    return "other"


def start(args, folder):
    if args.case == "training_step":
        return training_side.start_dtopp(FULL, "dtop_p", args.precision, args.threads, folder)
    return diffusion_step.start_dtopp(diffusion_step.CASES[args.case], "dtop_p", args.precision, args.threads, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="training_step", choices=["training_step", *diffusion_step.CASES])
    parser.add_argument("--symbols", type=int, default=0, help="also print this many lines of perf's report")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, data = pathlib.Path(name), pathlib.Path(name) / "perf.data"
        with start(args, folder / "run") as side:
            side.steps(1)
            perf = subprocess.Popen(["perf", "record", "-q", "-F", "499", "-o", data, "-p", str(side.process.pid)])
            steps = side.steps(args.steps)
            perf.send_signal(2)
            perf.wait()
        report = subprocess.run(["perf", "report", "-i", data, "--stdio", "--no-children", "-F", "overhead,dso,symbol",
                                 "--percent-limit", "0"], capture_output=True, text=True, check=True).stdout
    shares = collections.Counter()
    lines = report.splitlines()
    for line in lines:
        if found := re.match(r"\s+([\d.]+)%\s+(.*)", line):
            shares[part_of(found.group(2))] += float(found.group(1))
    print("\n".join([line for line in lines if "%" in line][:args.symbols]), end="\n" * bool(args.symbols), file=sys.stderr)
    print(json.dumps({"case": "step_breakdown " + args.case, "precision": args.precision, "threads": args.threads,
                      "tokens_per_second": round(statistics.median(s["throughput/tokens_per_second"] for s in steps), 1),
                      "percent": {part: round(share, 1) for part, share in shares.most_common()}}))


if __name__ == "__main__":
    main()
