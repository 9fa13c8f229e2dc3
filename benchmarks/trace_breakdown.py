"""Shows the parts of a step's time on a CUDA device, from the trace.json of logging.trace_step. Prints one JSON line: the step's span, the
time in which the device was busy, the number of kernels, and milliseconds by part; milliseconds of the N longest kernels with --kernels N."""

import argparse
import collections
import json
import re
import sys

PARTS = {  # the first match counts
    "experts: products": r"GroupProblemShape|multiply_kernel",
    "experts: gather, activation, sum, tables": r"gather_kernel<|swiglu|sum_rows|fill_kernel|spread_kernel|count_kernel|scan_kernel"
                                                r"|clear_kernel|offset_kernel|prepare_grouped",
    "router": r"route_|cumulative_prob|means_kernel|grad_scale",
    "attention": r"sdpa|cudnn::fusion|flash",
    "norm and rotation of queries and keys": r"norm_rotary|NormRotary",
    "loss": r"loss_kernel",
    "dense products": r"nvjet|cublasLt|gemm",
    "layer norms": r"layer_norm|GammaBeta",
    "optimizer": r"FusedAdam|FusedOptimizer|squared_norms",
    "sums of bf16 gradients and residuals": r"CUDAFunctor_add<c10::BFloat16>",
    "conversions and copies": r"copy|Copy|Memcpy|Memset",
}


def part_of(kernel):
    return next((part for part, pattern in PARTS.items() if re.search(pattern, kernel)), "other")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=argparse.FileType())
    parser.add_argument("--kernels", type=int, default=0)
    args = parser.parse_args()
    events = json.load(args.trace)["traceEvents"]
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not kernels:
        sys.exit("trace_breakdown: the trace has no kernels of a CUDA device")
    parts, names = collections.Counter(), collections.Counter()
    for kernel in kernels:
        parts[part_of(kernel["name"])] += kernel["dur"] / 1e3
        names[kernel["name"]] += kernel["dur"] / 1e3
    span = max(k["ts"] + k["dur"] for k in kernels) - min(k["ts"] for k in kernels)
    print(json.dumps({"case": "trace_breakdown", "milliseconds": round(span / 1e3, 1), "busy": round(sum(parts.values()), 1),
                      "kernels": len(kernels), "parts": {part: round(time, 1) for part, time in parts.most_common()},
                      "longest": {name[:200]: round(time, 3) for name, time in names.most_common(args.kernels)}}))


if __name__ == "__main__":
    main()
