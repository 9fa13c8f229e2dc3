"""The Mixture-of-Experts layer and its parts, as modules. T tokens, D hidden size, E experts, F expert FFN size."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtopp import functional, operators
from dtopp.expert_normalization import ExpertNormalization, logit_sums
from dtopp.functional import Normalization, Renormalize, Routing
from dtopp.routers import DTopP, Router, RouterInput, TopK, TopP

RouterName = Literal["top_k", "top_p", "dtop_p"]

INIT_STD, INIT_CUT = 0.02, 3.0  # matrices: a normal distribution, cut at INIT_CUT standard deviations
LOSSES = ("load_balance", "dynamic", "router_z")


def set_loss_scale(scale: float | Tensor) -> None:
    """Sets the factor by which the training loss is multiplied before its backward pass; initially 1.

    The gradients of all routers' losses are multiplied by it. Call it before the forward pass with `scaler.get_scale()`
    of a GradScaler, or with 1 / n if the loss is divided over n micro-batches, or with their product.

    Raises:
        ValueError: a scale that is not above 0 and finite.
    """
    factor = float(scale)
    _expect(0 < factor < float("inf"), f"a loss scale above 0 and finite, got {factor}")
    # .data: autograd allows a new scale between forward and backward pass, which then takes it.
    operators.loss_scale.data.fill_(factor)


class Gate(nn.Module):
    """Routes each token to experts: logits z = W x, then the selection of a router (dtopp.Router).

    The losses of routing are

        load_balance E sum_i f_i Q_i + dynamic mean(-sum P log P) + router_z mean(logsumexp(z)^2)

    with f_i the share of tokens routed to expert i (a constant) and Q_i the mean of P_i. In training they enter through the
    gradient of the gates, so the training loss must not add them. They are multiplied by `loss_scale`, which a
    RouterUpdater sets to 1 / (number of layers). If the training loss is scaled, call `dtopp.set_loss_scale`.

    Everything from the logits on is computed in f32 (f64 for f64 parameters), also under autocast.

    Args:
        hidden_size, num_experts: D, E.
        zero_experts: number of further choices that compute nothing, for dtop_p and dtopp.TopKBiasZero. A token may then
            have no expert.
        router: top_k, top_p (p is constant), dtop_p (a ThresholdController moves p), or a Router of your own.
        target_experts: T, the mean number of experts per token; k of top_k. Only for named routers, like threshold and max_experts.
        threshold: p; with router dtop_p its initial value.
        normalization, renormalize, max_experts: as in dtopp.functional.route.
        expert_normalization: running centers and scales each expert's logits over tokens, before normalization, with running
            means of earlier steps that a RouterUpdater moves. They are over all tokens; `dtopp train` samples the tokens of
            large steps.
        load_balance, dynamic, router_z: weights of the losses.

    Parameters: weight [E + zero_experts, D]; scale [1], theta, if normalization is dynamic. A router without logits
    (dtopp.Hash) has neither.

    The state_dict does not hold the router's state, for example p (`gate.router.threshold`), the means of
    expert_normalization, and the counts between two steps. A RouterUpdater saves the state;
    `gate.router.threshold.fill_(p)` sets p by hand.

    Raises:
        ValueError: an option out of range; in a call, an input of another shape.
    """

    def __init__(self, hidden_size: int, num_experts: int, *, router: RouterName | Router = "dtop_p",
                 zero_experts: int = 0, target_experts: float = 8, threshold: float = 0.25,
                 normalization: Normalization = "dynamic", expert_normalization: Literal["none", "running"] = "none",
                 renormalize: Renormalize = True, max_experts: int = 0,
                 load_balance: float = 1e-4, dynamic: float = 1e-3, router_z: float = 0.0,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.hidden_size = _size("hidden_size", hidden_size)
        self.num_experts = _size("num_experts", num_experts)
        self.zero_experts = _size("zero_experts", zero_experts, least=0)
        self.normalization, self.renormalize = normalization, renormalize
        self.loss_weights = (load_balance, dynamic, router_z)
        if not isinstance(router, Router):
            router = _named_router(router, num_experts, target_experts, threshold, max_experts, zero_experts > 0)
        self._check(router)
        _expect(expert_normalization == "none" or (expert_normalization == "running" and normalization != "none"),
                "expert_normalization none, or running with normalization fixed or dynamic, got "
                f"'{expert_normalization}' with '{normalization}'")
        self.expert_normalization = (None if expert_normalization == "none" else
                                     ExpertNormalization(hidden_size, num_experts + zero_experts))
        if router.has_logits:
            self.weight = nn.Parameter(torch.empty(num_experts + zero_experts, hidden_size, device=device, dtype=dtype))
        if normalization == "dynamic":
            self.scale = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.register_load_state_dict_pre_hook(_take_scale_of_checkpoints)  # type: ignore[no-untyped-call]
        self._begin(torch.empty(0, device=device).device)
        self.set_router(router)
        if self.expert_normalization is not None:
            self.expert_normalization.place(self.tally.device)
        self.reset_parameters()

    def set_router(self, router: Router) -> None:
        """Replaces the router by one of a layer with as many parameters. Create a RouterUpdater afterwards."""
        self.router = router
        self.statistics = self.tally.new_zeros(router.statistics_size)
        router.place(self.tally.device)

    def reset_parameters(self) -> None:
        if self.router.has_logits:
            _draw(self.weight)
        if self.normalization == "dynamic":
            nn.init.ones_(self.scale)

    def forward(self, x_TD: Tensor, ids_T: Tensor | None = None) -> Routing:
        """Routes the T tokens of x_TD [T, D], of any float dtype. dtopp.Hash needs their ids, int64 [T]."""
        if x_TD.dim() != 2 or x_TD.shape[1] != self.hidden_size:
            raise ValueError(f"Gate: expected x of shape [tokens, {self.hidden_size}], got {list(x_TD.shape)}")
        if self.tally.device != x_TD.device:
            self._place(x_TD.device)
        with torch.autocast(x_TD.device.type, enabled=False):
            return self._route(x_TD, ids_T)

    def _route(self, x_TD: Tensor, ids_T: Tensor | None) -> Routing:
        has_logits = self.router.has_logits
        real = torch.float64 if (self.weight if has_logits else x_TD).dtype == torch.float64 else torch.float32
        logits_TE = F.linear(x_TD.to(real), self.weight.to(real)) if has_logits else x_TD.new_empty(0, dtype=real)
        if self.expert_normalization is not None:
            logits_TE = self.expert_normalization(logits_TE, self.weight.to(real))
        scale = self.scale.reshape(()).to(real) if self.normalization == "dynamic" else logits_TE.new_ones(())
        routing = self.router.select(RouterInput(logits_TE, scale, self.normalization, self.renormalize,
                                                 self.training, self.zero_experts, ids_T))
        if self.zero_experts > 0:
            routing = functional.without_zero_experts(routing, self.zero_experts, logits_TE, scale, self.normalization)
        if not self.training:
            return routing
        tokens = max(routing.gates_TE.shape[0], 1)
        share_E = routing.tokens_per_expert_E.to(routing.mean_prob_E.dtype) / tokens
        losses = (share_E * routing.mean_prob_E).sum() * self.num_experts, routing.entropy, routing.router_z
        operators.tally_(self.tally, torch.cat([routing.tokens_per_expert_E, routing.active_histogram]))
        operators.tally_(self.sums, torch.stack([*losses, scale, scale.new_ones(())]).detach())
        if has_logits:
            operators.tally_(self.logit_sums, logit_sums(logits_TE, None if self.expert_normalization is None else x_TD))
        if routing.statistics is not None:
            operators.tally_(self.statistics, routing.statistics)
        weighted = [weight * loss for weight, loss in zip(self.loss_weights, losses) if weight != 0]
        moved = self.router.load_balance_weight()
        if moved is not None:
            weighted.append(moved.to(losses[0].device, real) * losses[0])
        if not weighted:
            return routing
        loss = sum(weighted[1:], start=weighted[0]) * self.loss_scale.to(real)
        return routing._replace(gates_TE=operators.add_loss(routing.gates_TE, loss, operators.loss_scale))

    def _begin(self, device: torch.device) -> None:
        # No buffers: .to(dtype) would convert them, DistributedDataParallel broadcast them, the state_dict save them.
        self.loss_scale = torch.ones((), device=device)
        # Expert counts [E] and the histogram of active experts [E + 1] since the last step.
        self.tally = torch.zeros(2 * self.num_experts + 1, dtype=torch.int64, device=device)
        # Sums of the three losses and of theta, and the number of calls summed.
        self.sums = torch.zeros(len(LOSSES) + 2, dtype=torch.float64, device=device)
        num_logits = self.num_experts + self.zero_experts
        of_inputs = 0 if self.expert_normalization is None else num_logits + self.hidden_size
        self.logit_sums = torch.zeros(num_logits + 1 + of_inputs, dtype=torch.int64, device=device)

    def _place(self, device: torch.device) -> None:
        if self.tally.is_meta:
            self._begin(device)
            self.statistics = self.tally.new_zeros(self.statistics.shape)
        for name in ("loss_scale", "tally", "sums", "logit_sums", "statistics"):
            setattr(self, name, getattr(self, name).to(device))
        self.router.place(device)
        if self.expert_normalization is not None:
            self.expert_normalization.place(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Gate":
        self._place(fn(self.tally[:0]).device)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def _check(self, router: Router) -> None:
        _expect(self.normalization in ("none", "fixed", "dynamic"),
                f"normalization none, fixed or dynamic, got '{self.normalization}'")
        for name, weight in zip(LOSSES, self.loss_weights):
            _expect(0 <= weight < float("inf"), f"a weight {name} of at least 0, got {weight}")
        _expect(router.has_logits or (self.normalization, self.zero_experts, *self.loss_weights) == ("none", 0, 0, 0, 0),
                "normalization none, no zero experts and no losses with a router without logits")

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, num_experts={self.num_experts}, normalization={self.normalization}"


class Experts(nn.Module):
    """The experts of a layer, SwiGLU feed-forward networks without biases (dtopp.functional.moe_ffn).

    Under autocast, x and the weights are cast to its dtype and y has it; gates are not cast.

    Parameters: gate_up_proj [E, 2F, D], F rows of W_gate, then F of W_up; down_proj [E, D, F].

    Raises:
        ValueError: a size below 1; in a call, an input of another shape or dtype.
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_experts: int, *,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        D, ffn = _size("hidden_size", hidden_size), _size("ffn_hidden_size", ffn_hidden_size)
        E = _size("num_experts", num_experts)
        self.gate_up_proj = nn.Parameter(torch.empty(E, 2 * ffn, D, device=device, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(E, D, ffn, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _draw(*self.parameters())

    def forward(self, x_TD: Tensor, gates_TE: Tensor) -> Tensor:
        """Maps x_TD [T, D] and gates_TE f32 [T, E] to y_TD [T, D]."""
        x_TD, gate_up_proj, down_proj = functional.in_autocast(x_TD, self.gate_up_proj, self.down_proj)
        return functional.moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj)

    def extra_repr(self) -> str:
        E, D, ffn = self.down_proj.shape
        return f"hidden_size={D}, ffn_hidden_size={ffn}, num_experts={E}"


class FeedForward(nn.Module):
    """One SwiGLU feed-forward network without biases, for every token.

    Parameters: gate_up_proj.weight [2F, D], F rows of W_gate, then F of W_up; down_proj.weight [D, F].
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, *, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * ffn_hidden_size, bias=False, device=device, dtype=dtype)
        self.down_proj = nn.Linear(ffn_hidden_size, hidden_size, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _draw(*self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        y: Tensor = self.down_proj(F.silu(gate) * up)
        return y


class MoE(nn.Module):
    """A Mixture-of-Experts feed-forward layer: y = sum over the selected experts of gate_e E_e(x).

    With shared_experts above 0, y also has the output of one FFN (`shared_experts`) of that many times
    ffn_hidden_size, with shared_gate times sigmoid(w x). With zero_kind "copy", zero experts return x instead of 0. The
    other arguments are those of Gate (`gate`); errors are those of Gate and Experts (`experts`).

    The state_dict holds gate.weight [E, D], gate.scale [1] (if dynamic), experts.gate_up_proj [E, 2F, D],
    experts.down_proj [E, D, F], the parameters of FeedForward under `shared_experts.`, and shared_gate.weight [1, D].
    These are the names of a dtopp checkpoint below `mlp.`, which load_state_dict accepts.
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_experts: int, *, shared_experts: int = 0,
                 shared_gate: bool = False, zero_kind: Literal["zero", "copy"] = "zero",
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None, **gate: Any) -> None:
        super().__init__()
        self.gate = Gate(hidden_size, num_experts, device=device, dtype=dtype, **gate)
        self.experts = Experts(hidden_size, ffn_hidden_size, num_experts, device=device, dtype=dtype)
        _expect(zero_kind in ("zero", "copy"), f"zero_kind zero or copy, got '{zero_kind}'")
        self.zero_kind = zero_kind
        self.shared_experts = None if _size("shared_experts", shared_experts, least=0) == 0 else FeedForward(
            hidden_size, shared_experts * ffn_hidden_size, device=device, dtype=dtype)
        _expect(not shared_gate or shared_experts > 0, "shared_experts above 0 with shared_gate")
        self.shared_gate = nn.Linear(hidden_size, 1, bias=False, device=device, dtype=dtype) if shared_gate else None
        _draw(*(self.shared_gate.parameters() if self.shared_gate else ()))

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Maps x [..., D] to y [..., D]; every vector of D numbers is a token. Its id, int64 [...], is for dtopp.Hash."""
        x_TD = x.reshape(-1, x.shape[-1])
        routing: Routing = self.gate(x_TD, None if ids is None else ids.reshape(-1))
        y_TD: Tensor = self.experts(x_TD, routing.gates_TE)
        if routing.zero_gate_T1 is not None and self.zero_kind == "copy":
            y_TD = y_TD + (x_TD * routing.zero_gate_T1).to(y_TD.dtype)
        if self.shared_experts is not None:
            shared_TD: Tensor = self.shared_experts(x_TD)
            y_TD = y_TD + (shared_TD if self.shared_gate is None else self.shared_gate(x_TD).sigmoid() * shared_TD)
        return y_TD.reshape(x.shape)


def _named_router(name: str, experts: int, target: float, threshold: float, max_experts: int, has_zero: bool) -> Router:
    _expect(name in ("top_k", "top_p", "dtop_p"), f"router top_k, top_p, dtop_p or a Router, got '{name}'")
    _expect(0 < threshold < 1, f"a threshold between 0 and 1, both excluded, got {threshold}")
    _expect(max_experts >= 0, f"max_experts of at least 0, got {max_experts}")
    if name == "top_p":
        return TopP(threshold, max_experts)
    _expect((target > 0 if has_zero and name == "dtop_p" else target >= 1) and target <= experts,
            f"target_experts from 1 to num_experts {experts}, got {target}")
    _expect(max_experts == 0 or max_experts >= target,
            f"max_experts of at least target_experts {target}, or 0, got {max_experts}")
    if name == "dtop_p":
        return DTopP(experts, target, threshold, max_experts)
    _expect(target == int(target), f"a whole number as target_experts with router top_k, got {target}")
    return TopK(int(target))


def _expect(fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"dtopp: expected {expected}")


def _size(name: str, value: int, least: int = 1) -> int:
    _expect(isinstance(value, int) and value >= least, f"{name} of at least {least}, got {value}")
    return value


def _draw(*matrices: Tensor) -> None:
    for matrix in matrices:
        nn.init.trunc_normal_(matrix, std=INIT_STD, a=-INIT_CUT * INIT_STD, b=INIT_CUT * INIT_STD)


def _take_scale_of_checkpoints(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    # theta has shape [] in a dtopp checkpoint and [1] here, because FSDP2 cannot shard scalars.
    scale = state_dict.get(prefix + "scale")
    if scale is not None and scale.dim() == 0:
        state_dict[prefix + "scale"] = scale.reshape(1)
