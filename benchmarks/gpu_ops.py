"""Times the ops on one device in bf16, forward + backward, at the size of a layer of moe-1.3b-6.9b-64e8a.

Prints one JSON line per case. CUDA events time the runs of a case, in turns over several sets of random inputs; the
median over rounds counts. On a CPU the same code runs at a toy size: that shows whether it runs, and measures nothing.

expert_layer compares layers of equal active FLOPs with the device's matrix rate, measured in turn with them: dtopp's,
a dense FFN, and two in plain torch. grouped_mm adds torch._grouped_mm's rows up by index_add. scattered does the steps of
ScatterMoE, each as an operation of torch instead of its fused kernels: it sorts the pairs by expert without padding,
gathers rows, multiplies, scatters the rows back to their tokens and sums them by bmm. It needs a fixed number of experts
per token.

The file is long because it holds one function per case, and all share the timing in turns."""

import argparse
import collections
import dataclasses
import os
import pathlib
import platform
import statistics
import sys
import time
from contextlib import nullcontext
from functools import partial

import torch
from gpu_training import fused_kernels
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu
from training_side import BINARY
from yardstick import random_gates, report

SETS = 3  # sets of inputs, so that none is in the cache
ROOM = 1.1  # capacity relative to the number of pairs
LAUNCHING = 20_000_000  # device cycles
# Choices of fused kernels. The pair reads rows of one tensor, which grouped_mm needs as a copy.
FUSED = ["activation", "projection", "activation_gradient", "down_gradient", "activation_gradient,down_gradient", "input_gradient",
         "gate_up_gradient"]
ops = torch.ops.dtopp


@dataclasses.dataclass(frozen=True)
class Size:
    device: str
    tokens: int
    hidden: int
    ffn: int
    experts: int
    active: int
    vocab: int
    heads: int
    sequence: int
    rate: tuple  # rows, width of the product that gives the matrix rate; on an H200 as in dtopp/device/known_devices.cpp

    def __iter__(self):
        """tokens, hidden, ffn, experts, active"""
        return iter((self.tokens, self.hidden, self.ffn, self.experts, self.active))


SIZES = {"cuda": Size("cuda", 32768, 2048, 1024, 64, 8, 50432, 16, 2048, (32768, 6144)),
         "cpu": Size("cpu", 256, 64, 32, 16, 4, 512, 4, 64, (512, 256))}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_ops: torch finds no CUDA device; compare the list of nvidia-smi")
    library = os.path.abspath(os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so"))
    libraries = [library, os.path.join(os.path.dirname(library), "libdtopp_cuda.so")]
    for path in libraries[:2 if args.device == "cuda" else 1]:
        if not os.path.exists(path):
            sys.exit(f"gpu_ops: {path} is not built")
        torch.ops.load_library(path)
    return args


def time_on_cuda(run, n):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(LAUNCHING)  # the host finishes launching before the device begins
    start.record()
    run(n)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def time_on_cpu(run, n):
    start = time.perf_counter()
    run(n)
    return 1e3 * (time.perf_counter() - start)


def alternate(runs, rounds, device):
    """Median milliseconds of each named run; run(n) uses the n-th set of inputs. The first two rounds are not
    measured."""
    timed = time_on_cuda if device == "cuda" else time_on_cpu
    times = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            milliseconds = timed(run, turn % SETS)
            if turn >= 2:
                times[name].append(milliseconds)
    return {name: statistics.median(t) for name, t in times.items()}


def peak_mebibytes(run, device):
    """The memory that a run needs beyond what was allocated before it; None on a CPU."""
    if device == "cpu":
        return None
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
    return (torch.randn(*shape) * std).to(dtype)


def grouped_rows(rows, ends, gate_up, down):
    """The experts' outputs for rows that are sorted by expert."""
    gate, up = torch._grouped_mm(rows, gate_up.mT, offs=ends).chunk(2, -1)
    return torch._grouped_mm(silu(gate) * up, down.mT, offs=ends)


def ends_of(expert, experts):
    return torch.bincount(expert, minlength=experts).cumsum(0).int()


def grouped_layer(x, gates, gate_up, down):
    expert, token = gates.t().nonzero(as_tuple=True)
    rows = grouped_rows(x[token], ends_of(expert, gates.shape[1]), gate_up, down)
    weighted = rows.float() * gates[token, expert][:, None]
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add(0, token, weighted).to(x.dtype)


class Gather(torch.autograd.Function):
    """Rows of x [T, D] for the pairs in `order`, where pair k of a token has the number token * active + k."""

    @staticmethod
    def forward(context, x, order, active):
        context.save_for_backward(order)
        context.active = active
        return x[order // active]

    @staticmethod
    def backward(context, grad):
        pairs = grad.new_empty(grad.shape).index_copy_(0, context.saved_tensors[0], grad)
        return pairs.view(-1, context.active, grad.shape[1]).sum(1), None, None


class Scatter(torch.autograd.Function):
    """Writes the rows to the places in `order`, which is a permutation."""

    @staticmethod
    def forward(context, rows, order):
        context.save_for_backward(order)
        return rows.new_empty(rows.shape).index_copy_(0, order, rows)

    @staticmethod
    def backward(context, grad):
        return grad[context.saved_tensors[0]], None


def scattered_layer(x, weight, expert, gate_up, down):
    """`weight` and `expert` [tokens, active] are a token's gates and the numbers of its experts."""
    tokens, active = expert.shape
    order = expert.flatten().argsort()
    ends = ends_of(expert.flatten(), len(down))
    rows = grouped_rows(Gather.apply(x, order, active), ends, gate_up, down)
    pairs = Scatter.apply(rows, order).view(tokens, active, -1)
    return torch.bmm(weight.to(x.dtype).unsqueeze(1), pairs).squeeze(1)


def dense_layer(x, gate_up, down):
    gate, up = linear(x, gate_up).chunk(2, -1)
    return linear(silu(gate) * up, down)


def dtopp_layer(products, capacity, x, gates, gate_up, down):
    os.environ["DTOPP_MOE_KERNELS"] = products  # ignored on a CPU
    return ops.moe_ffn(x, gates, gate_up, down, capacity=capacity)


def products_of(device):
    """The ways to run the products of moe_ffn on this device. Training's choice comes first."""
    if device == "cpu":
        return ["cpu"]
    chosen = [fused_kernels()] if BINARY.exists() else []
    return list(dict.fromkeys([*chosen, "grouped_mm", "fused"]))


def make_layers(size, ways):
    """Returns {(layer, products, experts per token): forward(n) with the n-th set of inputs}, the inputs that need
    gradients (first those of the layer), and the gradients of the outputs."""
    tokens, D, F, E, K = size
    gate_up, down = randn(E, 2 * F, D, std=D**-0.5).requires_grad_(), randn(E, D, F, std=F**-0.5).requires_grad_()
    wide = [randn(2 * F * K, D, std=D**-0.5).requires_grad_(), randn(D, F * K, std=F**-0.5).requires_grad_()]
    xs = [randn(tokens, D).requires_grad_() for _ in range(SETS)]
    gates = {name: [random_gates(tokens, E, K, name == "varying").requires_grad_() for _ in range(SETS)]
             for name in ("varying", "fixed")}
    chosen = [each.detach().topk(K) for each in gates["fixed"]]
    weights, experts = [each.values.requires_grad_() for each in chosen], [each.indices for each in chosen]
    capacity = int(ROOM * K * tokens)

    def dtopp(products, kind, capacity, n):
        return dtopp_layer(products, capacity, xs[n], gates[kind][n], gate_up, down)

    layers = {("dense", None, None): lambda n: dense_layer(xs[n], *wide),
              ("grouped_mm", None, "varying"): lambda n: grouped_layer(xs[n], gates["varying"][n], gate_up, down),
              ("scattered", None, "fixed"): lambda n: scattered_layer(xs[n], weights[n], experts[n], gate_up, down)}
    for products in ways:
        layers |= {("dtopp", products, "varying"): partial(dtopp, products, "varying", capacity),
                   ("dtopp", products, "fixed"): partial(dtopp, products, "fixed", capacity),
                   ("dtopp, exact capacity", products, "varying"): partial(dtopp, products, "varying", 0)}
    inputs = [*xs, gate_up, down, *wide, *gates["varying"], *gates["fixed"], *weights]
    return layers, inputs, [randn(tokens, D) for _ in range(SETS)]


def expert_layer_case(size, rounds):
    layers, inputs, grads = make_layers(size, products_of(size.device))
    left, right = randn(*size.rate), randn(size.rate[1], size.rate[1])

    def both(layer, n):
        for tensor in inputs:
            tensor.grad = None
        layer(n).backward(grads[n])

    def forward(layer, n):
        with torch.no_grad():
            layer(n)

    def results(layer):
        inputs[0].grad = None
        output = layer(0)
        output.backward(grads[0])
        return torch.cat([output.detach(), inputs[0].grad]).float()

    def difference(name):
        """The largest relative distance of a token's output, or its gradient, from dtopp's with the same gates."""
        if name[0] == "dense":
            return None
        ours = results(next(layer for key, layer in layers.items() if key[0] == "dtopp" and key[2] == name[2]))
        return ((results(layers[name]) - ours).norm(dim=-1) / ours.norm(dim=-1)).max().item()

    runs = {"rate": lambda n: left @ right}
    runs |= {(name, way.__name__): partial(way, layer) for name, layer in layers.items() for way in (forward, both)}
    t = alternate(runs, rounds, size.device)
    rate = 2 * left.numel() * right.shape[1] / t["rate"] / 1e9
    report(case="matrix_rate", product=[*size.rate, size.rate[1]], tflops=rate, milliseconds=t["rate"])
    flops = 2 * 3 * size.active * size.tokens * size.hidden * size.ffn / 1e9
    dense = ("dense", None, None)
    for name in layers:
        ahead, whole = t[name, "forward"], t[name, "both"]
        report(case="expert_layer", layer=name[0], products=name[1], experts=name[2], tokens=size.tokens,
               forward_milliseconds=ahead, forward_tflops=flops / ahead, forward_share_of_rate=flops / ahead / rate,
               milliseconds=whole, tflops=3 * flops / whole, share_of_rate=3 * flops / whole / rate,
               speed_against_dense=t[dense, "both"] / whole,
               peak_mebibytes=peak_mebibytes(partial(both, layers[name]), size.device), difference=difference(name))
    if size.device == "cuda":
        for name in layers:
            if name[0] == "dtopp" and name[2] == "varying":
                report(case="expert_layer_kernels", products=name[1], milliseconds=kernels(partial(both, layers[name])))


def attention_case(size, rounds):
    """Causal attention by each of torch's kernels. In training, torch chooses the kernel. On a CUDA device also with the same sequences as
    documents of one long sequence: `documents` is the kernel that dtopp uses for them."""
    shape = size.tokens // size.sequence, size.heads, size.sequence, size.hidden // size.heads
    inputs = [[randn(*shape).requires_grad_() for _ in range(3)] for _ in range(SETS)]
    grads = [randn(*shape) for _ in range(SETS)]

    def attend(backends, n):
        for tensor in inputs[n]:
            tensor.grad = None
        with sdpa_kernel(backends) if backends else nullcontext():
            scaled_dot_product_attention(*inputs[n], is_causal=True).backward(grads[n])

    long = [[randn(size.tokens, size.heads, shape[3]).requires_grad_() for _ in range(3)] for _ in range(SETS)]
    offsets, L = torch.arange(0, size.tokens + 1, size.sequence, dtype=torch.int32), size.sequence
    aten = torch.ops.aten

    def flash(*qkv):
        return aten._flash_attention_forward(*qkv, offsets, offsets, L, L, 0.0, True, False)[0]

    def cudnn(*qkv):
        return aten._cudnn_attention_forward(*qkv, None, offsets, offsets, L, L, True, 0.0, True, False)[0]

    def attend_in_documents(kernel, n):
        for tensor in long[n]:
            tensor.grad = None
        kernel(*long[n]).backward(grads[n].view(long[n][0].shape))

    runs, alone, error = {"chosen": partial(attend, [])}, {}, None
    if size.device == "cuda":
        alone = {"cudnn": partial(attend, [SDPBackend.CUDNN_ATTENTION]), "flash": partial(attend, [SDPBackend.FLASH_ATTENTION]),
                 "documents": partial(attend_in_documents, flash), "cudnn_documents": partial(attend_in_documents, cudnn)}
        try:
            alone["cudnn_documents"](0)
        except RuntimeError as refused:  # not every torch and device has it
            del alone["cudnn_documents"]
            error = str(refused).split("\n")[0]
        runs |= alone
    t = alternate(runs, rounds, size.device)
    # Two products forward, five backward, half of the pairs.
    flops = (2 + 5) * 2 * size.tokens * size.sequence / 2 * size.hidden
    report(case="attention", tokens=size.tokens, milliseconds=t["chosen"], tflops=flops / t["chosen"] / 1e9,
           **{f"{name}_against_chosen": t["chosen"] / t[name] for name in alone}, cudnn_documents_error=error)


def expert_gemms_case(size, rounds):
    """Times dtopp's layer with a fused kernel for one product or two, and with none. The table of fused kernels in
    dtopp/ops/moe_ffn/cuda/fused/expert_gemm.cpp rests on such figures. A CPU has no such kernels."""
    if size.device == "cpu":
        return
    layers, inputs, grads = make_layers(size, ["grouped_mm", *FUSED])

    def both(products, n):
        for tensor in inputs:
            tensor.grad = None
        layers["dtopp", products, "varying"](n).backward(grads[n])

    runs = {products: partial(both, products) for products in ("grouped_mm", *FUSED)}
    t = alternate(runs, rounds, size.device)
    for products, run in runs.items():
        report(case="expert_gemm", product=products, milliseconds=t[products], speed_against_grouped_mm=t["grouped_mm"] / t[products],
               peak_mebibytes=peak_mebibytes(run, size.device))


def route_case(size, rounds):
    tokens, _, _, experts, _ = size
    logits = [randn(tokens, experts, dtype=torch.float32).requires_grad_() for _ in range(SETS)]
    grads = [randn(tokens, experts, dtype=torch.float32) for _ in range(SETS)]
    scale = torch.ones((), requires_grad=True)
    threshold = torch.tensor(0.415, dtype=torch.float64)
    ones, small = torch.ones(experts), torch.full((), 1e-3)

    def forward(n):
        with torch.no_grad():
            return ops.route(logits[n], scale, threshold)

    def route(n):
        logits[n].grad = scale.grad = None
        gates, _, _, prob, entropy, router_z, _ = ops.route(logits[n], scale, threshold)
        torch.autograd.backward([gates, prob, entropy, router_z], [grads[n], ones, small, small])

    t = alternate({"route": route, "forward": forward}, rounds, size.device)
    active = (forward(0)[2] * torch.arange(experts + 1)).sum().item() / tokens
    report(case="route", tokens=tokens, active=active, milliseconds=t["route"], forward_milliseconds=t["forward"])


def loss_case(size, rounds):
    tokens, D, *_ = size
    V = size.vocab
    inputs = [randn(tokens, D).requires_grad_() for _ in range(SETS)]
    targets = [torch.randint(V, (tokens,)) for _ in range(SETS)]
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

    t = alternate({"loss": loss, "eager": eager, "products": products}, rounds, size.device)
    report(case="linear_cross_entropy", tokens=tokens, tflops=3 * 2 * tokens * D * V / t["loss"] / 1e9,
           share_of_products=t["products"] / t["loss"], speed_against_eager=t["eager"] / t["loss"],
           milliseconds=t["loss"], peak_mebibytes=peak_mebibytes(loss, size.device),
           eager_peak_mebibytes=peak_mebibytes(eager, size.device))


def norm_case(size, rounds):
    tokens, D, *_ = size
    inputs, grads = [[randn(tokens, D) for _ in range(SETS)] for _ in range(2)]
    gain, angle = randn(D), torch.randn(tokens, D // size.heads)
    args = (gain, angle.cos(), angle.sin(), 1e-5)
    grads = [g.view(tokens, size.heads, D // size.heads) for g in grads]
    t = alternate({"forward": lambda n: ops.norm_rotary_forward(inputs[n], *args),
                   "backward": lambda n: ops.norm_rotary_backward(grads[n], inputs[n], *args),
                   "copy": lambda n: inputs[n].clone()}, rounds, size.device)
    report(case="norm_rotary", tokens=tokens, copy_gigabytes_a_second=2 * 2 * tokens * D / t["copy"] / 1e6,
           forward_against_copy=t["forward"] / t["copy"], backward_against_copy=t["backward"] / t["copy"],
           milliseconds=t["forward"] + t["backward"])


def orthogonalize_case(size, rounds):
    """Muon's update of the experts of a layer. FLOPs are those of three whole products per step of Newton and Schulz."""
    _, D, F, E, _ = size
    wide, tall = [[torch.randn(shape) for _ in range(SETS)] for shape in ((2 * E, F, D), (E, D, F))]  # gate and up are matrices of their own

    def update(n):
        for matrices in (wide[n], tall[n]):
            ops.orthogonalize(matrices, True)

    t = alternate({"update": update}, rounds, size.device)
    short = min(D, F)
    flops = 5 * 3 * E * (2 * short * short * max(D, F) * 2 + 2 * short**3)
    report(case="orthogonalize", matrices=[3 * E, D, F], milliseconds=t["update"], tflops=flops / t["update"] / 1e9)


def machine_case(size, rounds):
    facts = {}
    if size.device == "cuda":
        device = torch.cuda.get_device_properties(0)
        driver = pathlib.Path("/proc/driver/nvidia/version")
        facts = {"name": device.name, "memory_gibibytes": device.total_memory / 2**30, "multiprocessors": device.multi_processor_count,
                 "compute_capability": f"{device.major}.{device.minor}", "driver": driver.read_text().split("\n")[0] if driver.exists() else None}
    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    report(case="machine", **facts, cuda=torch.version.cuda, torch=torch.__version__, python=platform.python_version(),
           cpu=cpu[0] if cpu else platform.machine(), cores=os.cpu_count(),
           cpu_memory_gibibytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


CASES = {"machine": machine_case, "expert_layer": expert_layer_case, "route": route_case, "linear_cross_entropy": loss_case, "norm_rotary": norm_case,
         "attention": attention_case, "orthogonalize": orthogonalize_case, "expert_gemms": expert_gemms_case}


def main():
    args = arguments()
    size = SIZES[args.device]
    size = dataclasses.replace(size, tokens=args.tokens or size.tokens)
    torch.set_default_device(args.device)
    torch.manual_seed(1)
    for name in args.cases:
        CASES[name](size, args.rounds)
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
