"""Times the ops on one CUDA device in bf16, forward + backward, at the size of a layer of
moe-1.3b-6.9b-64e8a.

Prints one JSON line per case. CUDA events time the runs of a case, in turns over several sets of random
inputs; the median over rounds counts. Ends with one line if there is no CUDA device."""

import argparse
import collections
import os
import statistics
import sys
from contextlib import nullcontext
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu
from yardstick import report

DEVICE = "cuda"
D, F, E, K, V = 2048, 1024, 64, 8, 50432
SETS = 3  # sets of inputs, so that none is in the cache
ROOM = 1.1  # capacity relative to the number of pairs
HEADS = 16
SEQUENCE = 2048
LAUNCHING = 20_000_000  # device cycles
PRODUCTS = ("grouped_mm", "fused")  # the two ways to run moe_ffn
# The number of D x F matrices by which each product multiplies a row.
MATRICES = {"activation": 2, "projection": 1, "activation_gradient": 1, "input_gradient": 2, "down_gradient": 1,
            "gate_up_gradient": 2}
ops = torch.ops.dtopp


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=32768)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_ops: no CUDA device; run it on a machine with one")
    library = os.path.abspath(os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so"))
    for path in (library, os.path.join(os.path.dirname(library), "libdtopp_cuda.so")):
        if not os.path.exists(path):
            sys.exit(f"gpu_ops: {path} is not built")
        torch.ops.load_library(path)
    return args


def alternate(runs, rounds):
    """Median milliseconds of each named run; run(n) uses the n-th set of inputs. The first two rounds are not
    measured."""
    times = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(LAUNCHING)  # the host finishes launching before the device begins
            start.record()
            run(turn % SETS)
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(t) for name, t in times.items()}


def peak_mebibytes(run):
    """The memory that a run needs beyond what was allocated before it."""
    run(0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(0)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def kernels(run):
    """Milliseconds of each kernel of a run, longest first."""
    run(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
        run(1)
        torch.cuda.synchronize()
    times = collections.Counter()
    for event in profile.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.key[:120]] += event.self_device_time_total / 1e3
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def randn(*shape, std=1.0, dtype=torch.bfloat16):
    return (torch.randn(*shape, device=DEVICE) * std).to(dtype)


def random_gates(tokens, varying):
    """Sets of random experts: sizes around K with a standard deviation of 1.5 (like DTop-p's) and a mean of
    exactly K, or K for every token."""
    sizes = torch.full((tokens,), K, device=DEVICE)
    if varying:
        sizes = (K + 1.5 * torch.randn(tokens, device=DEVICE)).round().clamp(1, E).long()
        while (excess := int(sizes.sum()) - K * tokens) != 0:
            pick = torch.randint(tokens, (abs(excess),), device=DEVICE).unique()
            sizes[pick] = (sizes[pick] - (1 if excess > 0 else -1)).clamp(1, E)
    rank = torch.rand(tokens, E, device=DEVICE).argsort(-1).argsort(-1)
    gates = (rank < sizes[:, None]) * torch.rand(tokens, E, device=DEVICE).add(0.1)
    return gates / gates.sum(-1, keepdim=True)


def grouped_composition(x, gates, gate_up, down):
    """The reference in plain torch: torch._grouped_mm between a gather and an index_add."""
    expert, token = gates.t().nonzero(as_tuple=True)
    ends = torch.bincount(expert, minlength=E).cumsum(0).int()
    gate, up = torch._grouped_mm(x[token], gate_up.mT, offs=ends).chunk(2, -1)
    rows = torch._grouped_mm(silu(gate) * up, down.mT, offs=ends)
    weighted = rows.float() * gates[token, expert][:, None]
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add(0, token, weighted).to(x.dtype)


def moe_case(tokens, rounds):
    gate_up, down = randn(E, 2 * F, D, std=D**-0.5).requires_grad_(), randn(E, D, F, std=F**-0.5).requires_grad_()
    wide_gate_up, wide_down = randn(2 * F * K, D, std=D**-0.5).requires_grad_(), randn(D, F * K, std=F**-0.5).requires_grad_()
    inputs = [randn(tokens, D).requires_grad_() for _ in range(SETS)]
    grads = [randn(tokens, D) for _ in range(SETS)]
    sets = {name: [random_gates(tokens, name == "varying").requires_grad_() for _ in range(SETS)]
            for name in ("varying", "fixed")}
    parameters = [gate_up, down, wide_gate_up, wide_down, *inputs, *sets["varying"], *sets["fixed"]]
    room = int(ROOM * K * tokens)

    def clear():
        for p in parameters:
            p.grad = None

    def moe(products, kind, n, capacity=room):
        clear()
        os.environ["DTOPP_MOE_KERNELS"] = products
        ops.moe_ffn(inputs[n], sets[kind][n], gate_up, down, capacity=capacity).backward(grads[n])

    def forward(products, n):
        os.environ["DTOPP_MOE_KERNELS"] = products
        with torch.no_grad():
            ops.moe_ffn(inputs[n], sets["varying"][n], gate_up, down, capacity=room)

    def composition(n):
        clear()
        grouped_composition(inputs[n], sets["varying"][n], gate_up, down).backward(grads[n])

    def dense(n):
        clear()
        gate, up = linear(inputs[n], wide_gate_up).chunk(2, -1)
        linear(silu(gate) * up, wide_down).backward(grads[n])

    runs = {"dense": dense, "composition": composition}
    for products in PRODUCTS:
        runs |= {(products, "varying"): partial(moe, products, "varying"), (products, "fixed"): partial(moe, products, "fixed"),
                 (products, "forward"): partial(forward, products),
                 (products, "exact"): partial(moe, products, "varying", capacity=0)}
    t = alternate(runs, rounds)
    flops = 3 * 2 * 3 * K * tokens * D * F
    rate = lambda name, share=1.0: flops * share / t[name] / 1e9
    for products in PRODUCTS:
        varying = t[products, "varying"]
        report(case="moe_ffn", products=products, tokens=tokens, tflops=rate((products, "varying")),
               forward_tflops=rate((products, "forward"), 1 / 3), dense_tflops=rate("dense"),
               composition_tflops=rate("composition"), share_of_dense=t["dense"] / varying,
               speed_against_composition=t["composition"] / varying,
               varying_against_fixed=varying / t[products, "fixed"], exact_against_room=t[products, "exact"] / varying,
               milliseconds=varying, peak_mebibytes=peak_mebibytes(runs[products, "varying"]),
               composition_peak_mebibytes=peak_mebibytes(composition))
    for products in PRODUCTS:
        report(case="moe_ffn_kernels", products=products, milliseconds=kernels(runs[products, "varying"]))
    return min(t[products, "varying"] for products in PRODUCTS)


def attention_case(tokens, rounds):
    """Causal attention over sequences of 2,048 tokens by each of torch's kernels. In training, torch chooses
    the kernel."""
    shape = tokens // SEQUENCE, HEADS, SEQUENCE, D // HEADS
    inputs = [[randn(*shape).requires_grad_() for _ in range(3)] for _ in range(SETS)]
    grads = [randn(*shape) for _ in range(SETS)]

    def attend(backends, n):
        for tensor in inputs[n]:
            tensor.grad = None
        with sdpa_kernel(backends) if backends else nullcontext():
            scaled_dot_product_attention(*inputs[n], is_causal=True).backward(grads[n])

    runs = {"chosen": partial(attend, []), "cudnn": partial(attend, [SDPBackend.CUDNN_ATTENTION]),
            "flash": partial(attend, [SDPBackend.FLASH_ATTENTION])}
    t = alternate(runs, rounds)
    flops = (2 + 5) * 2 * tokens * SEQUENCE / 2 * D  # two products forward, five backward, half of the pairs
    report(case="attention", tokens=tokens, milliseconds=t["chosen"], tflops=flops / t["chosen"] / 1e9,
           cudnn_against_chosen=t["chosen"] / t["cudnn"], flash_against_chosen=t["chosen"] / t["flash"])


def product_cases():
    """Times each product of moe_ffn as `dtopp devices --check` does (dtopp/ops/moe_ffn/cuda/tune/check_expert_gemm_cuda.cpp): 8
    experts of 4,096 rows, including the kernels that torch's grouped product needs around it."""
    flops = 2 * 8 * 4096 * D * F
    for product, matrices in MATRICES.items():
        fused_error, grouped_error, fused, grouped = ops.check_expert_gemm(product, "grouped_mm", 0)
        rate = lambda milliseconds: flops * matrices / milliseconds / 1e9
        report(case="moe_product", product=product, fused_tflops=rate(fused), grouped_mm_tflops=rate(grouped),
               fused_against_grouped_mm=grouped / fused, fused_error=fused_error, grouped_mm_error=grouped_error)


def route_case(tokens, rounds, moe_milliseconds):
    logits = [randn(tokens, E, dtype=torch.float32).requires_grad_() for _ in range(SETS)]
    grads = [randn(tokens, E, dtype=torch.float32) for _ in range(SETS)]
    scale = torch.ones((), device=DEVICE, requires_grad=True)
    threshold = torch.tensor(0.415, dtype=torch.float64, device=DEVICE)
    ones, small = torch.ones(E, device=DEVICE), torch.full((), 1e-3, device=DEVICE)

    def forward(n):
        with torch.no_grad():
            return ops.route(logits[n], scale, threshold)

    def route(n):
        logits[n].grad = scale.grad = None
        gates, _, _, prob, entropy, router_z = ops.route(logits[n], scale, threshold)
        torch.autograd.backward([gates, prob, entropy, router_z], [grads[n], ones, small, small])

    t = alternate({"route": route, "forward": forward}, rounds)
    active = (forward(0)[2] * torch.arange(E + 1, device=DEVICE)).sum().item() / tokens
    report(case="route", tokens=tokens, active=active, milliseconds=t["route"], forward_milliseconds=t["forward"],
           share_of_moe_ffn=t["route"] / moe_milliseconds)


def loss_case(tokens, rounds):
    inputs = [randn(tokens, D).requires_grad_() for _ in range(SETS)]
    targets = [torch.randint(V, (tokens,), device=DEVICE) for _ in range(SETS)]
    weight = randn(V, D, std=0.02).requires_grad_()

    def loss(n):
        inputs[n].grad = weight.grad = None
        ops.linear_cross_entropy(inputs[n], weight, targets[n], z_weight=1e-4)[0].backward()

    def eager(n):
        inputs[n].grad = weight.grad = None
        logits = linear(inputs[n], weight).float()
        (cross_entropy(logits, targets[n]) + 1e-4 * logits.logsumexp(-1).square().mean()).backward()

    def products(n):
        """The three matrix products alone, without chunks."""
        with torch.no_grad():
            logits = inputs[n] @ weight.T
            logits @ weight
            logits.T @ inputs[n]

    t = alternate({"loss": loss, "eager": eager, "products": products}, rounds)
    report(case="linear_cross_entropy", tokens=tokens, tflops=3 * 2 * tokens * D * V / t["loss"] / 1e9,
           share_of_products=t["products"] / t["loss"], speed_against_eager=t["eager"] / t["loss"],
           milliseconds=t["loss"], peak_mebibytes=peak_mebibytes(loss), eager_peak_mebibytes=peak_mebibytes(eager))


def norm_case(tokens, rounds):
    inputs, grads = [[randn(tokens, D) for _ in range(SETS)] for _ in range(2)]
    gain, angle = randn(D), torch.randn(tokens, D // HEADS, device=DEVICE)
    args = (gain, angle.cos(), angle.sin(), 1e-5)
    grads = [g.view(tokens, HEADS, D // HEADS) for g in grads]
    t = alternate({"forward": lambda n: ops.norm_rotary_forward(inputs[n], *args),
                   "backward": lambda n: ops.norm_rotary_backward(grads[n], inputs[n], *args),
                   "copy": lambda n: inputs[n].clone()}, rounds)
    report(case="norm_rotary", tokens=tokens, copy_gigabytes_a_second=2 * 2 * tokens * D / t["copy"] / 1e6,
           forward_against_copy=t["forward"] / t["copy"], backward_against_copy=t["backward"] / t["copy"],
           milliseconds=t["forward"] + t["backward"])


def main():
    args = arguments()
    torch.manual_seed(1)
    moe_milliseconds = moe_case(args.tokens, args.rounds)
    torch.cuda.empty_cache()
    route_case(args.tokens, args.rounds, moe_milliseconds)
    loss_case(args.tokens, args.rounds)
    torch.cuda.empty_cache()
    norm_case(args.tokens, args.rounds)
    attention_case(args.tokens, args.rounds)
    product_cases()


if __name__ == "__main__":
    main()
