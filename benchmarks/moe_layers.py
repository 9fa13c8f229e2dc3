"""Times one Mixture-of-Experts layer (router and experts, fp32 or bf16) against other layers on the same
machine, over sizes:

  olmoe eager, olmoe grouped   Hugging Face's OlmoeSparseMoeBlock with both of its expert implementations; Top-k
  torch top-p                  a plain PyTorch Top-p layer: sort, cumulative sum, and a loop over experts that gathers and
                               scatters tokens and runs the FFN with torch's operations; it uses DTop-p's threshold
  dense                        a SwiGLU FFN with equal FLOPs in torch's operations, without a router

dtopp runs as DTop-p (normalized logits, threshold) at the same mean number of experts, through
torch.ops.dtopp, in the same process, in turn with the others. forward: without autograd; backward: forward +
backward; step: with fused AdamW. Prints one JSON line per size: milliseconds of each, and the speed-up of
dtopp.
"""

import argparse
import os

import torch
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from yardstick import YARDSTICK_FLOPS, alternate, make_yardstick, report

CENTER = {"D": 512, "E": 64, "K": 8, "T": 4096}
SWEEPS = {"D": [256, 1024, 2048], "E": [8, 16, 128], "K": [1, 2, 4, 16], "T": [256, 1024, 16384]}


def sizes(sweeps, quick):
    yield CENTER
    for name, values in ((name, SWEEPS[name]) for name in sweeps):
        for value in values:
            case = CENTER | {name: value}
            case["T"] = min(case["T"], 4096 * 512 // max(case["D"], 512)) if name != "T" else case["T"]
            case["K"] = min(case["K"], case["E"] // 2)
            case["E"] = min(case["E"], 16 * 2048 // case["D"]) if case["D"] > 1024 else case["E"]  # five such layers with optimizers fit 24 GB
            if not quick or value == values[0]:
                yield case


class Experts(torch.nn.Module):
    """Router and expert weights in dtopp's layout."""

    def __init__(self, D, F, E, dtype):
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(E, D) * D**-0.5)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.gate_up = torch.nn.Parameter((torch.randn(E, 2 * F, D) * D**-0.5).to(dtype))
        self.down = torch.nn.Parameter((torch.randn(E, D, F) * F**-0.5).to(dtype))
        self.threshold = torch.tensor(0.5, dtype=torch.float64)

    def logits(self, x):
        return torch.nn.functional.linear(x.float(), self.router)


class Dtopp(Experts):
    def route(self, x):
        return torch.ops.dtopp.route(self.logits(x), self.scale, self.threshold)

    def forward(self, x):
        return torch.ops.dtopp.moe_ffn(x, self.route(x)[0], self.gate_up, self.down)

    @torch.no_grad()
    def solve(self, x, mean):
        """Sets the threshold at which a token selects `mean` experts on average."""
        low, high = 0.0, 1.0
        for _ in range(30):
            self.threshold.fill_((low + high) / 2)
            low, high = ((self.threshold.item(), high) if self.route(x)[1].sum() < mean * len(x)
                         else (low, self.threshold.item()))


class TorchTopP(Experts):
    def forward(self, x):
        z = self.logits(x)
        z = (z - z.mean(-1, keepdim=True)) / (z.var(-1, keepdim=True, correction=0) + 1e-6).sqrt() * self.scale
        sorted_prob, order = z.softmax(-1).sort(-1, descending=True)
        kept = sorted_prob.cumsum(-1) - sorted_prob < self.threshold
        kept[:, 0] = True
        gates = torch.zeros_like(z).scatter(1, order, sorted_prob * kept)
        gates = gates / gates.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for e in range(z.shape[1]):
            rows = gates[:, e].nonzero(as_tuple=True)[0]
            if len(rows) == 0:
                continue
            gate, up = torch.nn.functional.linear(x[rows], self.gate_up[e]).chunk(2, -1)
            out = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, self.down[e])
            y = y.index_add(0, rows, out * gates[rows, e, None].to(x.dtype))
        return y


class Dense(torch.nn.Module):
    def __init__(self, D, F, dtype):
        super().__init__()
        self.gate_up = torch.nn.Parameter((torch.randn(2 * F, D) * D**-0.5).to(dtype))
        self.down = torch.nn.Parameter((torch.randn(D, F) * F**-0.5).to(dtype))

    def forward(self, x):
        gate, up = torch.nn.functional.linear(x, self.gate_up).chunk(2, -1)
        return torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, self.down)


class Olmoe(torch.nn.Module):
    def __init__(self, D, F, E, K, dtype, implementation):
        super().__init__()
        config = OlmoeConfig(hidden_size=D, intermediate_size=F, num_experts=E, num_experts_per_tok=K,
                             norm_topk_prob=True)
        config._experts_implementation = implementation
        self.block = OlmoeSparseMoeBlock(config)
        for parameter in self.block.parameters():
            torch.nn.init.normal_(parameter, std=D**-0.5)
        self.to(dtype)

    def forward(self, x):
        y = self.block(x[None])
        return (y[0] if isinstance(y, tuple) else y)[0]


def runs_of(model, x, grad):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def forward():
        with torch.no_grad():
            model(x)

    def backward():
        optimizer.zero_grad(set_to_none=True)
        model(x).backward(grad)

    def step():
        backward()
        optimizer.step()

    return {"forward": forward, "backward": backward, "step": step}


def measure(case, args, dtype):
    D, E, K, T = (case[name] for name in "DEKT")
    F = D // 2
    torch.manual_seed(1)
    x, grad = torch.randn(T, D).to(dtype).requires_grad_(), torch.randn(T, D).to(dtype)
    ours = Dtopp(D, F, E, dtype)
    ours.solve(x, K)
    plain = TorchTopP(D, F, E, dtype)
    plain.load_state_dict(ours.state_dict())
    plain.threshold.copy_(ours.threshold)
    # A token exactly at the threshold may differ by an expert.
    apart = int(((ours(x) - plain(x)).abs().amax(-1) > (1e-3 if dtype == torch.float32 else 0.2)).sum())
    assert apart <= max(1, T // 500), f"dtopp and plain PyTorch differ in {apart} of {T} tokens"
    models = {"dtopp": ours, "torch top-p": plain, "olmoe eager": Olmoe(D, F, E, K, dtype, "eager"),
              "olmoe grouped": Olmoe(D, F, E, K, dtype, "grouped_mm"), "dense": Dense(D, F * K, dtype)}
    runs = {"g": make_yardstick(torch.float32)}
    for name, model in models.items():
        runs |= {f"{name}/{part}": run for part, run in runs_of(model, x, grad).items()}
    seconds = alternate(runs, args.rounds)
    flops = 2 * 3 * K * T * D * F
    g = YARDSTICK_FLOPS / seconds["g"]
    for part, share in (("forward", 1), ("backward", 3), ("step", 3)):
        mine = seconds[f"dtopp/{part}"]
        report(case="moe_layer", part=part, dtype=str(dtype).removeprefix("torch."), threads=args.threads, **case, F=F,
               milliseconds={name: round(1e3 * seconds[f"{name}/{part}"], 2) for name in models},
               times_faster={name: round(seconds[f"{name}/{part}"] / mine, 2) for name in models if name != "dtopp"},
               share_of_g=share * flops / mine / g)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--sweeps", nargs="+", default=list(SWEEPS), choices=list(SWEEPS))
    parser.add_argument("--size", nargs=4, type=int, metavar=tuple("DEKT"), help="measure one size only: hidden, experts, active, tokens")
    parser.add_argument("--quick", action="store_true", help="one other size per sweep")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.ops.load_library(os.path.abspath(os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so")))
    for name in args.dtypes:
        for case in [dict(zip("DEKT", args.size))] if args.size else sizes(args.sweeps, args.quick):
            measure(case, args, getattr(torch, name))


if __name__ == "__main__":
    main()
