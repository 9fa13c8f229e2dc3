"""Times linear_cross_entropy forward + backward against g and torch's eager ops: T 4096, D 512, V 50,432.
Prints one JSON line per case, with the peak memory beyond the inputs and one fp32 weight gradient."""

import resource
import sys

import torch
from yardstick import YARDSTICK_FLOPS, alternate, arguments, make_yardstick, report

D, V = 512, 50_432


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_mib():
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) / 1024


def main():
    args = arguments(__doc__)
    tokens = int(4096 * args.scale)
    for name in args.dtypes:
        dtype = getattr(torch, name)
        torch.manual_seed(1)
        x = torch.randn(tokens, D).to(dtype).requires_grad_()
        weight = (torch.randn(V, D) * 0.02).to(dtype).requires_grad_()
        targets = torch.randint(V, (tokens,))

        def fused():
            x.grad = weight.grad = None
            torch.ops.dtopp.linear_cross_entropy(x, weight, targets, z_weight=1e-4)[0].backward()

        def forward():
            with torch.no_grad():
                torch.ops.dtopp.linear_cross_entropy(x, weight, targets, z_weight=1e-4)

        fused()
        x.grad = weight.grad = None
        extra = None
        try:
            before = resident_mib()
            reset_peak()
            fused()
            extra = peak_mib() - before - V * D * 4 / 2**20
        except OSError as error:
            print(f"peak memory not measured: {error}", file=sys.stderr)
        runs = {"g": make_yardstick(dtype), "fused": fused, "forward": forward}
        if dtype != torch.float32:
            runs["g_float32"] = make_yardstick(torch.float32)
        t = alternate(runs, args.rounds)
        flops = 6 * tokens * D * V
        g = YARDSTICK_FLOPS / t["g"]
        report(case="linear_cross_entropy", dtype=name, g_gflops=g / 1e9, gflops=flops / t["fused"] / 1e9,
               share_of_g=flops / t["fused"] / g, forward_share_of_g=flops / 3 / t["forward"] / g,
               share_of_float32_g=flops / t["fused"] / (YARDSTICK_FLOPS / t.get("g_float32", t["g"])),
               seconds=t["fused"], extra_mib=extra)


if __name__ == "__main__":
    main()
