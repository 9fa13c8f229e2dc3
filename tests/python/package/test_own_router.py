"""Tests dtopp.Router: a router of one's own, defined here, in dtopp.MoE."""

import copy

import pytest
import torch
from ops_reference import close
from package_forms import both_forms, layer
from tiny_run import ROOT

import dtopp

PAGE = (ROOT / "docs/how-to/pytorch.md").read_text()
SOURCE = PAGE[PAGE.index("class TopKBias"):].split("\nmoe =")[0]
exec(compile("import torch, dtopp\n" + SOURCE, "docs/how-to/pytorch.md", "exec"), own := {})
TopKBias = own["TopKBias"]


def stack(**options):
    return torch.nn.Sequential(*(layer(seed=seed, router=TopKBias(6, 2, rate=0.25), **options) for seed in (1, 2)))


def by_hand(moe, x, bias):
    """The gates, in double precision, of the two experts with the largest probability plus bias."""
    logits = (x @ moe.gate.weight.T).double()
    centered = logits - logits.mean(-1, keepdim=True)
    prob = (moe.gate.scale * centered / (centered.square().mean(-1, keepdim=True) + 1e-6).sqrt()).softmax(-1)
    chosen = torch.zeros_like(prob).scatter(1, (prob + bias).topk(2).indices, 1)
    return prob * chosen / (prob * chosen).sum(-1, keepdim=True)


def test_own_router_selects_and_its_gates_have_gradients(both_forms):
    moe, x = layer(router=TopKBias(6, 2, rate=0.25), load_balance=0.0, dynamic=0.0), torch.randn(40, 16)
    moe.gate.router.bias_E.copy_(torch.linspace(-0.3, 0.3, 6))
    weights = torch.randn(40, 6)
    want = by_hand(moe, x, moe.gate.router.bias_E)
    (want * weights).sum().backward()
    expected = moe.gate.weight.grad.clone()
    moe.gate.weight.grad = None
    routing = moe.gate(x)
    close(routing.gates_TE, want, torch.float32)
    (routing.gates_TE * weights).sum().backward()
    close(moe.gate.weight.grad, expected, torch.float32)


def test_update_moves_the_state_of_each_layer_by_its_own_counts():
    model = stack()
    updater = dtopp.RouterUpdater(model)
    for _ in range(2):
        model(torch.randn(33, 16))
    counts = [moe.gate.tally[:6].clone() for moe in model]
    assert all(count.sum() == 2 * 2 * 33 for count in counts)
    updater.step(applied=False)
    assert not any(moe.gate.router.bias_E.any() for moe in model)
    model(torch.randn(33, 16))
    counts = [moe.gate.tally[:6].clone() for moe in model]
    updater.step()
    for moe, count in zip(model, counts):
        assert torch.equal(moe.gate.router.bias_E, 0.25 * torch.sign(count.sum() / 6 - count).double())


def test_layers_that_share_a_router_share_its_counts():
    router = TopKBias(6, 2, rate=0.25)
    model = torch.nn.Sequential(*(layer(seed=seed, router=router) for seed in (1, 2)))
    updater = dtopp.RouterUpdater(model)
    model(torch.randn(33, 16))
    count = sum(moe.gate.tally[:6] for moe in model)
    updater.step()
    assert torch.equal(router.bias_E, 0.25 * torch.sign(count.sum() / 6 - count).double())
    twin = copy.deepcopy(model)
    assert twin[0].gate.router is twin[1].gate.router is not router


def test_state_comes_back_exactly_and_is_not_converted():
    model = stack()
    updater = dtopp.RouterUpdater(model)
    model(torch.randn(33, 16))
    updater.step()
    state = updater.state_dict()
    assert list(state) == ["0.bias_E", "1.bias_E"] and any(state["0.bias_E"])
    twin = stack().bfloat16()
    other = dtopp.RouterUpdater(twin)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert twin[0].gate.router.bias_E.dtype == torch.float64
    with pytest.raises(ValueError, match=r"0.bias_E of shape \[6\], got \[5\]"):
        other.load_state_dict({name: value[:5] for name, value in state.items()})
    assert dtopp.ThresholdController(model).metrics() == {} and updater.metrics()["moe/layer_01/active_experts"] == 2


def test_bias_evens_the_load():
    torch.manual_seed(3)
    moe = layer(router=TopKBias(6, 2, rate=0.002))
    updater, imbalance, x = dtopp.RouterUpdater(moe), [], torch.randn(2000, 16) + 0.5
    for _ in range(100):
        moe.gate(x)
        updater.step()
        imbalance.append(updater.metrics()["moe/imbalance"])
    assert imbalance[0] > 1.5 and max(imbalance[-10:]) < 1.1


def test_a_moving_state_compiles_nothing_again():
    torch._dynamo.reset()
    moe = layer(router=TopKBias(6, 2, rate=0.25))
    updater, call = dtopp.RouterUpdater(moe), torch.compile(moe, backend="aot_eager", fullgraph=True)
    call(torch.randn(33, 16))
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            updater.step()
            x = torch.randn(33, 16)
            torch.testing.assert_close(call(x), moe(x))


def test_statistics_are_summed_for_update():
    class Counting(dtopp.TopK):
        statistics_size = 1

        def select(self, input):
            routing = super().select(input)
            return routing._replace(statistics=torch.tensor([len(input.logits_TE)])) if input.training else routing

        def update(self, counts):
            self.seen = counts

    router = Counting(2)
    model = torch.nn.Sequential(*(layer(seed=seed, router=router) for seed in (1, 2)))
    updater = dtopp.RouterUpdater(model)
    for _ in range(3):
        model(torch.randn(7, 16))
    updater.step()
    assert router.seen.statistics.tolist() == [42] and router.seen.tokens == 42


def test_mistakes_are_named():
    with pytest.raises(NotImplementedError, match=r"Router: select\(\) is missing"):
        layer(router=dtopp.Router())(torch.zeros(3, 16))
    shared = TopKBias(6, 2)
    with pytest.raises(ValueError, match="the same num_experts in all layers of a router, got 6, 8"):
        dtopp.RouterUpdater(torch.nn.ModuleList([layer(router=shared), layer(sizes=(16, 12, 8), router=shared)]))
    with torch.device("meta"):
        empty = dtopp.MoE(16, 12, 6, router=TopKBias(6, 2))
    with pytest.raises(ValueError, match="TopKBias: bias_E was made on the meta device"):
        empty.to_empty(device="cpu")
