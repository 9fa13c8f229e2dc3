"""Times route forward + backward as a share of moe_ffn's: T 8192, E 64, about 8 active. Prints one JSON line
per case."""

import torch
from yardstick import alternate, arguments, make_yardstick, report

D, F, E = 512, 256, 64


def main():
    args = arguments(__doc__)
    tokens = int(8192 * args.scale)
    torch.manual_seed(1)
    logits, scale = torch.randn(tokens, E).requires_grad_(), torch.tensor(1.0).requires_grad_()
    threshold = torch.tensor(0.415, dtype=torch.float64)
    grad = torch.randn(tokens, E)
    x, gate_up, down = torch.randn(tokens, D), torch.randn(E, 2 * F, D) * 0.04, torch.randn(E, D, F) * 0.06
    tensors = [t.requires_grad_() for t in (x, gate_up, down)]
    out = {}

    def route():
        logits.grad = scale.grad = None
        out["forward"] = torch.ops.dtopp.route(logits, scale, threshold)
        gates, _, _, prob, entropy, router_z = out["forward"]
        torch.autograd.backward([gates, prob, entropy, router_z],
                                [grad, torch.ones(E), torch.tensor(1e-3), torch.tensor(1e-3)])

    def forward():
        with torch.no_grad():
            torch.ops.dtopp.route(logits, scale, threshold)

    def moe():
        for t in tensors:
            t.grad = None
        torch.ops.dtopp.moe_ffn(x, out["forward"][0].detach(), gate_up, down).sum().backward()

    t = alternate({"route": route, "forward": forward, "moe": moe, "g": make_yardstick(torch.float32)}, args.rounds)
    active = (out["forward"][2] * torch.arange(E + 1)).sum().item() / tokens
    report(case="route", dtype="float32", active=active, seconds=t["route"], forward_seconds=t["forward"],
           moe_ffn_seconds=t["moe"], share_of_moe_ffn=t["route"] / t["moe"])


if __name__ == "__main__":
    main()
