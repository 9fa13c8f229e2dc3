"""Times moe_ffn forward + backward against g, against a dense SwiGLU FFN with equal FLOPs, and with varying
against fixed sets. Its backward pass, which adds weight gradients to fp32 sums, is compared with computing
and then adding them. T 8192, D 512, F 256, E 64, 8 experts per token on average. Prints one JSON line per
case."""

import torch
from yardstick import YARDSTICK_FLOPS, alternate, arguments, make_yardstick, random_gates, report

D, F, E, K = 512, 256, 64, 8


def main():
    args = arguments(__doc__)
    tokens = int(8192 * args.scale)
    for name in args.dtypes:
        dtype = getattr(torch, name)
        torch.manual_seed(1)
        x = torch.randn(tokens, D).to(dtype).requires_grad_()
        gate_up = (torch.randn(E, 2 * F, D) * D**-0.5).to(dtype).requires_grad_()
        down = (torch.randn(E, D, F) * F**-0.5).to(dtype).requires_grad_()
        wide_gate_up = (torch.randn(2 * F * K, D) * D**-0.5).to(dtype).requires_grad_()
        wide_down = (torch.randn(D, F * K) * F**-0.5).to(dtype).requires_grad_()
        grad = torch.randn(tokens, D).to(dtype)
        sets = {v: random_gates(tokens, E, K, v == "varying").requires_grad_() for v in ("varying", "fixed")}
        parameters = [x, gate_up, down, wide_gate_up, wide_down, *sets.values()]
        forward_seconds = []

        def moe(gates):
            for p in parameters:
                p.grad = None
            torch.ops.dtopp.moe_ffn(x, gates, gate_up, down).backward(grad)

        def forward():
            with torch.no_grad():
                torch.ops.dtopp.moe_ffn(x, sets["varying"], gate_up, down)

        def dense():
            for p in parameters:
                p.grad = None
            gate, up = torch.nn.functional.linear(x, wide_gate_up).chunk(2, -1)
            torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, wide_down).backward(grad)

        ops = torch.ops.dtopp
        with torch.no_grad():
            gates = sets["varying"]
            _, pre = ops.moe_ffn_forward(x, gates, gates.t().nonzero(), gate_up, down)
            sums = [torch.zeros(weight.shape) for weight in (gate_up, down)]
            inputs = (grad, x, gates, gate_up, down, pre)

        @torch.no_grad()
        def into_sums():
            ops.moe_ffn_backward_sums(*inputs, [True, True], *sums, [True, True])

        @torch.no_grad()
        def then_added():
            for total, gradient in zip(sums, ops.moe_ffn_backward(*inputs, [True] * 4)[2:]):
                total.add_(gradient)

        runs = {"g": make_yardstick(dtype), "varying": lambda: moe(sets["varying"]), "fixed": lambda: moe(sets["fixed"]),
                "forward": forward, "dense": dense, "into_sums": into_sums, "then_added": then_added}
        if dtype != torch.float32:
            runs["g_float32"] = make_yardstick(torch.float32)
        t = alternate(runs, args.rounds)
        g = YARDSTICK_FLOPS / t["g"]
        flops = 3 * 2 * 3 * K * tokens * D * F
        report(case="moe_ffn", dtype=name, g_gflops=g / 1e9, gflops=flops / t["varying"] / 1e9,
               share_of_g=flops / t["varying"] / g, forward_share_of_g=flops / 3 / t["forward"] / g,
               share_of_float32_g=flops / t["varying"] / (YARDSTICK_FLOPS / t.get("g_float32", t["g"])),
               speed_against_dense=t["dense"] / t["varying"], varying_against_fixed=t["varying"] / t["fixed"],
               into_sums_against_added=t["then_added"] / t["into_sums"],
               seconds=t["varying"])


if __name__ == "__main__":
    main()
