"""Times each router's selection, forward + backward, as a share of moe_ffn's: T 8192, about 8 of 64 experts active, at
D 512, F 256 and at the lab's D 256, F 128. The routers of dtopp/moe as operators and tensor operations, with
gradients of all losses; `_zero` with 32 zero experts. Prints one JSON line per size and router."""

import torch
import torch.nn.functional as F
from yardstick import alternate, arguments, make_yardstick, report

E, ACTIVE, ZERO, STRIDE = 64, 8, 32, 4  # every STRIDE-th token is counted (cumulative_prob_stride in dtopp/moe/router.h)
SIZES = {"lab": (256, 128), "center": (512, 256)}


def op(*args, **options):
    return torch.ops.dtopp.route(*args, **options)


class Routers:
    """The forward passes; each returns the tensors that have gradients, the gates first."""

    def __init__(self, tokens):
        self.z = torch.randn(tokens, E).requires_grad_()
        self.scale, self.one = torch.tensor(1.0).requires_grad_(), torch.tensor(1.0)
        self.threshold, self.bias = torch.tensor(0.415, dtype=torch.float64), torch.randn(E) * 0.1
        self.none = {"normalization": "none", "renormalize": False}
        self.tau = torch.full((E,), 1.15)
        self.wide = torch.randn(tokens, E + ZERO).requires_grad_()
        self.ids, self.expert_VK = torch.randint(0, 8192, (tokens,)), torch.rand(8192, E).argsort(-1)[:, :ACTIVE]

    def top_k(self):
        return op(self.z, self.scale, self.threshold, top_k=ACTIVE)

    def dtop_p_counts(self):
        return torch.ops.dtopp.cumulative_prob_histogram(self.z.detach(), self.scale.detach(), stride=STRIDE)

    def top_p(self):
        return op(self.z, self.scale, self.threshold)

    def dtop_p(self):
        return (*self.top_p(), self.dtop_p_counts())

    def dtop_p_bias(self):
        return (*op(self.z, self.scale, self.threshold, bias_E=self.bias), self.dtop_p_counts())

    def top_k_bias(self):
        return op(F.logsigmoid(self.z), self.one, self.threshold, normalization="none", top_k=ACTIVE, bias_E=self.bias, bias_on="score")

    def relu(self):
        out = op(self.z, self.one, self.threshold, gate="relu", **self.none)
        return (*out[:3], out[3] / ACTIVE, *out[4:])

    def expert_threshold(self):
        counts = torch.ops.dtopp.logit_histogram(self.z.detach(), stride=STRIDE)
        return (*op(self.z, self.one, self.threshold, top_k=ACTIVE, gate="sigmoid", cut_E=self.tau, **self.none), counts)

    def hash(self):
        chosen = torch.zeros(len(self.ids), E, dtype=torch.bool).scatter_(1, self.expert_VK[self.ids], True)
        return (chosen.float() * (1 / ACTIVE), *self.counts(chosen))

    def top_k_bias_zero(self):
        return self.without_zero(self.wide, op(self.wide, self.one, self.threshold, normalization="none", top_k=ACTIVE * 3 // 2,
                                               bias_E=F.pad(self.bias, (0, ZERO)), bias_on="probability"))

    def dtop_p_zero(self):
        z, scale = self.wide.detach(), self.scale.detach()
        counts = torch.ops.dtopp.cumulative_prob_histogram(z, scale, stride=STRIDE, zero_experts=ZERO)
        s = self.wide - self.wide.mean(-1, keepdim=True)
        s = s * (s.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.scale
        return (*self.without_zero(s, op(self.wide, self.scale, self.threshold)), counts)

    def without_zero(self, s, out):
        gates = out[0][:, :E].contiguous()
        mean_prob = s[:, :E].softmax(-1).sum(0) / len(s)
        return (gates, *self.counts(gates.detach() != 0), mean_prob, *out[4:], out[0][:, E:].sum(1, keepdim=True))

    def counts(self, chosen):
        active = chosen.sum(1)
        return chosen.sum(0), torch.zeros(E + 1, dtype=torch.int64).index_add(0, active, torch.ones_like(active))


def main():
    args = arguments(__doc__)
    tokens = int(8192 * args.scale)
    torch.manual_seed(1)
    routers, grad = Routers(tokens), torch.randn(tokens, E)
    gates = routers.top_k()[0].detach()

    def both(select):
        def run():
            routers.z.grad = routers.wide.grad = None
            out = [tensor for tensor in select() if tensor.requires_grad]
            if out:
                torch.autograd.backward(out, [grad, *(torch.full_like(tensor, 1e-3) for tensor in out[1:])])
        return run

    timed = {name: both(getattr(routers, name))
             for name in ("top_k", "top_k_bias", "top_p", "dtop_p", "dtop_p_bias", "relu", "expert_threshold", "hash",
                          "top_k_bias_zero", "dtop_p_zero")}

    def moe(x, gate_up, down):
        def run():
            for t in (x, gate_up, down):
                t.grad = None
            torch.ops.dtopp.moe_ffn(x, gates, gate_up, down).sum().backward()
        return run

    for size, (D, F) in SIZES.items():
        tensors = torch.randn(tokens, D), torch.randn(E, 2 * F, D) * 0.04, torch.randn(E, D, F) * 0.06
        timed[size] = moe(*(t.requires_grad_() for t in tensors))
    t = alternate(timed | {"g": make_yardstick(torch.float32)}, args.rounds)
    for size in SIZES:
        for name in list(timed)[:-len(SIZES)]:
            report(case="route", size=size, router=name, dtype="float32", seconds=t[name], moe_ffn_seconds=t[size],
                   share_of_moe_ffn=t[name] / t[size])


if __name__ == "__main__":
    main()
