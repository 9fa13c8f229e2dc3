"""The counts of a model's gates since the last step, over all processes. L: layers, E: experts."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dtopp.expert_normalization import common_logit_share
from dtopp.layers import LOSSES, Gate
from dtopp.routers import Router, StepCounts


class ModelCounts:
    """Takes the gates' counts, resets them to zero, and adds up those of the processes of a group. The host
    does not wait for a device until values are requested."""

    def __init__(self, gates: Sequence[Gate], group: dist.ProcessGroup | None) -> None:
        device = gates[0].tally.device
        self._routers = [gate.router for gate in gates]
        self._experts = [gate.num_experts for gate in gates]
        self._logits = [gate.num_experts + gate.zero_experts if gate.router.has_logits else 0 for gate in gates]
        self._scaled = [gate.normalization == "dynamic" for gate in gates]
        kinds = [[gate.tally for gate in gates], [gate.sums for gate in gates],
                 [gate.statistics for gate in gates], [gate.logit_sums for gate in gates]]
        flat = [tensor.to(device, torch.float64) for tensors in kinds for tensor in tensors]
        total = torch.cat(flat)  # integers, exact below 2^53
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(total, group=group)
        for tensor in (tensor for tensors in kinds for tensor in tensors):
            tensor.zero_()
        parts = torch.split(total, [tensor.numel() for tensor in flat])
        layers = len(gates)
        self._tallies, self._sums = parts[:layers], parts[layers : 2 * layers]
        self._statistics, self._logit_sums = parts[2 * layers : 3 * layers], parts[3 * layers :]

    def of(self, router: Router, device: torch.device) -> StepCounts:
        """The sums over the layers of a router."""
        layers = [layer for layer, own in enumerate(self._routers) if own is router]
        tally = torch.stack([self._tallies[layer] for layer in layers]).sum(0).to(device, torch.int64)
        statistics = torch.stack([self._statistics[layer] for layer in layers]).sum(0).to(device, torch.int64)
        experts = self._experts[layers[0]]
        return StepCounts(tally[:experts], tally[experts:].sum(), statistics)

    def of_logits(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's logit_sums (dtopp/expert_normalization.py), f64, and the number of its tokens."""
        return self._logit_sums[layer], self._tallies[layer][self._experts[layer] :].sum()

    def metrics(self) -> dict[str, float]:
        """The active experts and the unweighted losses, under the names of metrics.jsonl."""
        names = [f"moe/layer_{layer:02d}/" for layer in range(len(self._experts))]
        layers = [self._activations(layer) for layer in range(len(names))]
        histogram = torch.zeros(max(self._experts) + 1, dtype=torch.float64)
        for tally, experts in zip(self._tallies, self._experts):
            histogram[: experts + 1] += tally[experts:].cpu()
        mean, deviation = _moments(histogram)
        values = {"moe/active_experts": mean, "moe/active_experts_std": deviation,
                  "moe/imbalance": sum(layer["imbalance"] for layer in layers) / len(layers),
                  "moe/dead_experts": sum(layer["dead_experts"] for layer in layers)}
        shares = [layer["common_logit_share"] for layer in layers if "common_logit_share" in layer]
        if shares:
            values["moe/common_logit_share"] = sum(shares) / len(shares)
        values |= {name + key: value for name, layer in zip(names, layers) for key, value in layer.items()}
        return values | self._losses()

    def _activations(self, layer: int) -> dict[str, float]:
        experts, tally = self._experts[layer], self._tallies[layer].cpu()
        counts_E, (mean, deviation) = tally[:experts], _moments(tally[experts:])
        imbalance = (counts_E.max() / counts_E.mean()).item() if counts_E.sum() > 0 else 0.0
        values = {"active_experts": mean, "active_experts_std": deviation, "imbalance": imbalance,
                  "dead_experts": (counts_E == 0).sum().item()}
        if self._logits[layer] > 0:
            sums_S, tokens = self.of_logits(layer)
            values["common_logit_share"] = common_logit_share(sums_S, self._logits[layer], tokens)
        return values | {"scale": self._mean_sums(layer)[-1]} if self._scaled[layer] else values

    def _mean_sums(self, layer: int) -> list[float]:
        *sums, calls = self._sums[layer].tolist()
        return [value / max(calls, 1) for value in sums]

    def _losses(self) -> dict[str, float]:
        layers = [self._mean_sums(layer) for layer in range(len(self._sums))]
        return {f"train/{name}_loss": sum(layer[i] for layer in layers) / len(layers)
                for i, name in enumerate(LOSSES)}


def _moments(histogram: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of n; histogram[n] is the number of tokens with n."""
    n = torch.arange(histogram.numel(), dtype=torch.float64, device=histogram.device)
    tokens = max(histogram.sum().item(), 1.0)
    mean = (histogram * n).sum().item() / tokens
    return mean, max(0.0, (histogram * n * n).sum().item() / tokens - mean * mean) ** 0.5
