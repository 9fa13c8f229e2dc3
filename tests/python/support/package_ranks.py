"""Training of a model of dtopp.MoE layers in several processes, with DistributedDataParallel or FSDP2."""

import contextlib

import torch
import torch.distributed as dist
from package_forms import layer
from tiny_run import in_full
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dtopp

RANKS, STEPS, MICRO_BATCHES = 2, 4, 2
KINDS = ["ddp", "fsdp2", "ddp_in_checkpoints", *in_full("ddp_compiled", "fsdp2_compiled")]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        losses = {"load_balance": 0.3, "dynamic": 0.2, "router_z": 0.1}
        self.layers = nn.ModuleList(layer(seed=seed, expert_normalization=normalization, **losses)
                                    for seed, normalization in ((1, "running"), (2, "none")))
        self.checkpointed = False

    def forward(self, x):
        for moe in self.layers:
            call = torch.utils.checkpoint.checkpoint if self.checkpointed else lambda f, x, **_: f(x)
            x = x + call(moe, torch.tanh(x), use_reentrant=False)
        return x


def batch(step, micro_batch):
    return torch.randn(21, 16, generator=torch.Generator().manual_seed(100 * step + micro_batch))


def train(model, controller, of_step, skip_sync=contextlib.nullcontext):
    """Returns the thresholds of every step. of_step(step) returns the micro-batches of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    handle = controller.attach(optimizer)
    thresholds = []
    for step in range(STEPS):
        batches = of_step(step)
        dtopp.set_loss_scale(1 / len(batches))
        for n, x in enumerate(batches):
            with skip_sync() if n + 1 < len(batches) else contextlib.nullcontext():
                (model(x).square().mean() / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        thresholds.append(controller.state_dict()["0.threshold"])
    handle.remove()
    return thresholds


@contextlib.contextmanager
def without_sync_of_fsdp(model):
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def sharded(model):
    for moe in model.layers:
        fully_shard(moe)
    return fully_shard(model)


def rank(number, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=RANKS)
    for kind in KINDS:
        model = Model()
        model.checkpointed = kind == "ddp_in_checkpoints"
        if "compiled" in kind:
            for moe in model.layers:
                moe.compile(backend="aot_eager", fullgraph=True)
        if kind.startswith("fsdp2"):
            wrapped = sharded(model)
            skip_sync = lambda wrapped=wrapped: without_sync_of_fsdp(wrapped)
        else:
            wrapped = nn.parallel.DistributedDataParallel(model)
            skip_sync = wrapped.no_sync
        controller = dtopp.ThresholdController(wrapped, kp=1.0, controller="solve" if kind.startswith("fsdp2") else "pi")
        mine = range(number * MICRO_BATCHES, (number + 1) * MICRO_BATCHES)
        thresholds = train(wrapped, controller, lambda step: [batch(step, n) for n in mine], skip_sync)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        y = wrapped.eval()(batch(0, 0)).detach()
        if kind == "fsdp2":
            reload(dict(state), controller.state_dict(), y, number)
        torch.save({"thresholds": thresholds, "state": state, "metrics": controller.metrics(),
                    "normalization": controller.state_dict()["layer_00.logit_square_C"]},
                   f"{folder}/{kind}-{number}.pt")
    check_mixed_precision()
    dist.destroy_process_group()


def check_mixed_precision():
    """A router that is sharded separately keeps its f32 parameters while everything else is bf16."""
    model, x = Model(), batch(0, 0).bfloat16()
    with torch.no_grad():
        want = model.layers[0].gate.eval()(x).gates_TE
    fully_shard(model.layers[0].gate)
    fully_shard(model.layers[0], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    routed = []
    model.layers[0].gate.register_forward_hook(lambda _, __, routing: routed.append(routing.gates_TE))
    y = model.layers[0](x)
    assert y.dtype == torch.bfloat16 and torch.equal(routed[0], want)
    y.float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.layers[0].parameters())


def reload(state, of_controller, y, number):
    fresh = sharded(Model())
    dtopp.ThresholdController(fresh).load_state_dict(of_controller)
    set_model_state_dict(fresh, state if number == 0 else {}, options=StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True))
    torch.testing.assert_close(fresh.eval()(batch(0, 0)).detach(), y)
