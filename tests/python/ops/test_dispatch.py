"""Tests the ops of libdtopp_ops.so as PyTorch operators: torch.library.opcheck, compiled functions, equal
bits from run to run, and errors."""

import re

import pytest
import torch
from ops_reference import DTYPES, close, default_device, gates_like, loss_reference, moe_reference, ops, randn

OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def samples(dtype):
    grad = lambda t: t.requires_grad_()
    x, weight = randn(20, 8, dtype=dtype), randn(30, 8, dtype=dtype, seed=2)
    targets = torch.arange(20)
    threshold = torch.tensor(0.5, dtype=torch.float64)
    gate_up, down = randn(4, 12, 8, dtype=dtype, seed=3), randn(4, 8, 6, dtype=dtype, seed=4)
    gates = gates_like(20, 4, 2)
    return {
        "route": [
            ((grad(randn(20, 4).to(dtype)), grad(torch.tensor(1.0)), threshold), {}),
            ((randn(20, 4).to(dtype), torch.tensor(1.0), threshold), dict(normalization="none", top_k=2)),
            ((grad(randn(20, 4).to(dtype)), torch.tensor(1.0), threshold), dict(gate="relu", renormalize=False)),
            ((grad(randn(20, 4).to(dtype)), torch.tensor(1.0), threshold),
             dict(gate="sigmoid", renormalize=False, top_k=2, cut_E=torch.zeros(4))),
        ],
        "route_selected": [
            ((grad(randn(20, 4).to(dtype)), grad(torch.tensor(1.0)), gates.ne(0)), {}),
            ((randn(20, 4).to(dtype), torch.tensor(1.0), gates.ne(0)), dict(normalization="none", renormalize=False)),
        ],
        "cumulative_prob_histogram": [((randn(20, 4).to(dtype), torch.tensor(1.0)), dict(max_experts=3, stride=2))],
        "logit_histogram": [((randn(20, 4),), dict(stride=2))],
        "moe_ffn": [
            ((grad(x.clone()), grad(gates.clone()), grad(gate_up.clone()), grad(down.clone())), {}),
            ((x, gates, gate_up, grad(down.clone())), {}),
            ((x, gates, gate_up, down), {}),
            ((grad(x.clone()), grad(gates.clone()), grad(gate_up.clone()), grad(down.clone())), dict(recompute=True)),
        ],
        "moe_ffn_forward": [((x, gates, gates.t().nonzero(), gate_up, down), {})],
        "moe_ffn_pre_activations": [((x, gates, gates.t().nonzero(), gate_up, down), {})],
        "moe_ffn_backward_sums": [
            ((randn(20, 8, dtype=dtype), x, gates, gate_up, down, randn(int(gates.ne(0).sum()), 12, dtype=dtype), [True, True],
              torch.ones_like(gate_up, dtype=torch.float32), torch.ones_like(down, dtype=torch.float32), [True, False]), {})],
        "linear_cross_entropy": [
            ((grad(x.clone()), grad(weight.clone()), targets), dict(z_weight=0.1)),
            ((x, grad(weight.clone()), targets), {}),
            ((x, weight, targets), dict(ignore_index=3)),
        ],
        "linear_cross_entropy_forward": [((x, weight, targets, 0.1, -100, True, False), {})],
        "token_log_probs": [((x, weight, targets), {}), ((grad(x.clone()), weight, targets), {})],
    }


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(samples(torch.float32)))
def test_opcheck(name, dtype):
    for args, kwargs in samples(dtype)[name]:
        torch.library.opcheck(getattr(ops, name).default, args, kwargs, test_utils=OPCHECKS)


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_functions_give_the_same_gradients(dtype):
    cases = [(name, cases[0]) for name, cases in samples(dtype).items()]
    for name, (args, kwargs) in [*cases, ("moe_ffn", samples(dtype)["moe_ffn"][-1])]:
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            continue
        op = getattr(ops, name)

        def loss(*args):
            out = op(*args, **kwargs)
            out = out[0] if isinstance(out, (tuple, list)) else out
            return out.float().square().sum()

        grads = []
        for run in (loss, torch.compile(loss, backend="aot_eager", dynamic=True)):
            for a in args:
                a.grad = None
            run(*args).backward()
            grads.append([a.grad for a in args if a.requires_grad])
        for eager, compiled in zip(*grads):
            torch.testing.assert_close(eager, compiled)


@pytest.mark.usefixtures("default_device")
def test_two_runs_give_the_same_bits():
    def once():
        x, weight = randn(700, 64).requires_grad_(), randn(2000, 64, seed=2).requires_grad_()
        gate_up, down = randn(8, 64, 64, seed=3).requires_grad_(), randn(8, 64, 32, seed=4).requires_grad_()
        logits = randn(700, 8, seed=5).requires_grad_()
        gates = ops.route(logits, torch.tensor(1.0), torch.tensor(0.6, dtype=torch.float64))[0]
        y = ops.moe_ffn(x, gates, gate_up, down)
        loss = ops.linear_cross_entropy(y, weight, torch.arange(700))[0]
        loss.backward()
        return [loss.detach(), y.detach()] + [t.grad for t in (x, weight, gate_up, down, logits)]

    first = once()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, once()))


@pytest.mark.usefixtures("default_device")
def test_inputs_need_not_be_contiguous():
    x, gates = randn(8, 20).t(), gates_like(3, 20, 8).t()
    gate_up, down = randn(3, 8, 12, seed=2).mT, randn(3, 6, 8, seed=3).mT
    close(ops.moe_ffn(x, gates, gate_up, down), moe_reference(*(t.double() for t in (x, gates, gate_up, down))), x.dtype)
    weight, targets = randn(8, 30, seed=2).t(), torch.arange(40)[::2] % 30
    close(ops.linear_cross_entropy(x, weight, targets)[0], loss_reference(x.double(), weight.double(), targets, 0)[0], x.dtype)
    f64 = torch.tensor(0.5, dtype=torch.float64)
    logits = randn(6, 20, seed=7).t()
    assert torch.equal(ops.route(logits, torch.tensor(1.0), f64)[0], ops.route(logits.contiguous(), torch.tensor(1.0), f64)[0])


F64, ONE = torch.tensor(0.5, dtype=torch.float64), torch.tensor(1.0)
X, GATES, GATE_UP, DOWN = torch.zeros(3, 4), torch.zeros(3, 2), torch.zeros(2, 6, 4), torch.zeros(2, 4, 3)
WEIGHT, TARGETS = torch.zeros(5, 4), torch.zeros(3, dtype=torch.int64)
PAIRS, GAIN, ANGLES = torch.zeros(1, 2, dtype=torch.int64), torch.ones(4), torch.zeros(3, 2)
MISTAKES = [
    ("route", (torch.zeros(3), ONE, F64), {}, r"route: expected logits of shape .*got \[3\]"),
    ("route", (torch.zeros(3, 0), ONE, F64), {}, "route: expected logits of at least 1 expert"),
    ("route", (torch.zeros(3, 2, dtype=torch.int64), ONE, F64), {}, "route: .*float32.*got Long"),
    ("route", (torch.zeros(3, 2), torch.ones(1), F64), {}, r"route: expected a scale of shape \[\], got \[1\]"),
    ("route", (torch.zeros(3, 2), ONE.double(), F64), {}, "route: expected a scale of dtype float32, got Double"),
    ("route", (torch.zeros(3, 2), ONE, F64.float()), {}, "route: expected a threshold of dtype float64, got Float"),
    ("route", (torch.zeros(3, 2), ONE, F64[None]), {}, r"route: expected a threshold of shape \[\]"),
    ("route", (torch.zeros(3, 2), ONE, F64 * float("nan")), {}, "route: expected a threshold .*got nan"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(normalization="layer"), "route: expected normalization .*'layer'"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(top_k=3), "route: expected top_k from 0 to .*2, got 3"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(top_k=-1), "route: expected top_k .*got -1"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(max_experts=-1), "route: expected max_experts .*got -1"),
    ("route", (torch.zeros(3, 2), ONE.to("meta"), F64), {}, "route: expected .*device cpu, got meta"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(gate="tanh"), "route: expected gate probability, relu or sigmoid, got 'tanh'"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(gate="relu"), "route: gate relu takes neither renormalize nor a bias"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(gate="sigmoid", top_k=1, renormalize=False),
     "route: expected a cut exactly with gate sigmoid, got none with sigmoid"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(gate="sigmoid", cut_E=torch.zeros(2), renormalize=False), "route: expected top_k of at least 1"),
    ("logit_histogram", (torch.zeros(3),), {}, r"logit_histogram: expected logits of shape .*got \[3\]"),
    ("logit_histogram", (torch.zeros(3, 2).half(),), {}, "logit_histogram: expected logits of dtype .*got Half"),
    ("logit_histogram", (torch.zeros(3, 2),), dict(stride=0), "logit_histogram: expected a stride of at least 1, got 0"),
    ("route_selected", (torch.zeros(3), ONE, GATES[:, 0] > 0), {}, r"route_selected: expected logits of shape .*got \[3\]"),
    ("route_selected", (torch.zeros(3, 2), ONE, GATES), {}, "route_selected: expected a selection of dtype bool .*got Float"),
    ("route_selected", (torch.zeros(3, 2), ONE, GATES[1:] > 0), {}, r"route_selected: expected .*\[3, 2\].*got Bool \[2, 2\]"),
    ("moe_ffn", (X[0], GATES, GATE_UP, DOWN), {}, r"moe_ffn: expected x of shape .*got \[4\]"),
    ("moe_ffn", (X.half(), GATES, GATE_UP, DOWN), {}, "moe_ffn: expected x of dtype .*got Half"),
    ("moe_ffn", (X, GATES.double(), GATE_UP, DOWN), {}, "moe_ffn: expected gates of dtype Float, got Double"),
    ("moe_ffn", (X, GATES[:2], GATE_UP, DOWN), {}, r"moe_ffn: expected gates of shape \[3, experts\], got \[2, 2\]"),
    ("moe_ffn", (X, GATES, GATE_UP[:, :5], DOWN), {}, r"moe_ffn: expected gate_up_proj of shape \[2, 6, 4\], got \[2, 5, 4\]"),
    ("moe_ffn", (X, GATES, GATE_UP, DOWN[:1]), {}, r"moe_ffn: expected down_proj of shape .*got \[1, 4, 3\]"),
    ("moe_ffn", (X, GATES, GATE_UP.bfloat16(), DOWN), {}, "moe_ffn: expected .*dtype Float, got BFloat16 and Float"),
    ("moe_ffn", (X, GATES, GATE_UP.to("meta"), DOWN), {}, "moe_ffn: expected .*device cpu, .*meta"),
    ("linear_cross_entropy", (X[0], WEIGHT, TARGETS), {}, "linear_cross_entropy: expected x of shape"),
    ("linear_cross_entropy", (X, WEIGHT.T, TARGETS), {}, "linear_cross_entropy: expected a weight of shape"),
    ("linear_cross_entropy", (X, WEIGHT.double(), TARGETS), {}, "linear_cross_entropy: expected a weight of x's dtype Float, got Double"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS.int()), {}, "linear_cross_entropy: expected targets of dtype int64, got Int"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS[:2]), {}, r"linear_cross_entropy: expected targets of shape \[3\], got \[2\]"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS + 5), {}, "linear_cross_entropy: expected targets from 0 to 4, got 5 at index 0"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS - 1), {}, "linear_cross_entropy: expected targets .*got -1"),
    ("linear_cross_entropy", (X, WEIGHT.to("meta"), TARGETS), {}, "linear_cross_entropy: expected .*device cpu, got meta"),
    ("token_log_probs", (X, WEIGHT, TARGETS - 100), {}, "token_log_probs: expected targets .*got -100"),
    ("token_log_probs", (X, WEIGHT[0], TARGETS), {}, "token_log_probs: expected a weight of shape"),
    # Operators that only autograd calls.
    ("route_backward", (GATES, ONE, GATES[:2], None, None, None, None, "none", True), {}, r"route_backward: expected gates .*got Float \[2, 2\]"),
    ("route_backward", (GATES, ONE, GATES, None, GATES, None, None, "none", True), {}, r"route_backward: expected grad_mean_prob Float \[2\] on cpu"),
    ("moe_ffn_forward", (X, GATES, PAIRS + 3, GATE_UP, DOWN), {}, "moe_ffn_forward: expected pairs .*experts from 0 to 1 and tokens from 0 to 2"),
    ("moe_ffn_forward", (X, GATES, PAIRS - 1, GATE_UP, DOWN), {}, "moe_ffn_forward: expected pairs"),
    ("moe_ffn_forward", (X, GATES, PAIRS.int(), GATE_UP, DOWN), {}, r"moe_ffn_forward: expected pairs Long \[1, 2\] on cpu, got Int"),
    ("moe_ffn_backward", (X, X, GATES, GATE_UP, DOWN, torch.zeros(1, 6), [True] * 4), {}, "moe_ffn_backward: expected pre_activations of 0 pairs, .*got 1"),
    ("moe_ffn_backward", (X[:2], X, GATES, GATE_UP, DOWN, torch.zeros(0, 6), [True] * 4), {}, r"moe_ffn_backward: expected grad_y Float \[3, 4\] on cpu, got Float \[2, 4\]"),
    ("linear_cross_entropy_forward", (X, WEIGHT, TARGETS[:2], 0.0, -100, True, True), {}, r"linear_cross_entropy_forward: expected targets of shape \[3\]"),
    ("norm_rotary_forward", (X, ONE[None], ANGLES, ANGLES, 1e-5), {}, r"norm_rotary_forward: expected gain of shape \[N\], N a divisor of 4 and a multiple of 2, got \[1\]"),
    ("norm_rotary_forward", (X.double(), GAIN.double(), ANGLES, ANGLES, 1e-5), {}, "norm_rotary_forward: expected x of dtype float32 or bfloat16, got Double"),
    ("norm_rotary_backward", (X, X, GAIN, ANGLES, ANGLES, 1e-5), {}, r"norm_rotary_backward: expected grad_y Float \[3, 2, 2\] on cpu"),
]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name,args,kwargs,message", MISTAKES, ids=[m[3] for m in MISTAKES])
def test_mistakes_are_named(name, args, kwargs, message, inference):
    with torch.inference_mode(inference), pytest.raises(RuntimeError) as error:
        getattr(ops, name)(*args, **kwargs)
    assert str(error.value).startswith(name + ":")
    assert re.search(message, str(error.value).splitlines()[0]), str(error.value).splitlines()[0]
