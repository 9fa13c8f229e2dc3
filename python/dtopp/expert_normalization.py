"""Normalizes each expert's logits over tokens, and measures what the logits of all tokens have in common. T tokens, C logits
per token, D hidden size."""

import torch
from torch import Tensor

from dtopp.router_state import RouterState

LOGIT_SUM_UNIT = 2.0**-20
_LARGEST_VALUE = 2.0**20
_VARIANCE_EPSILON = 1e-6
_STEPS_PER_AVERAGED_STEP = 100


class ExpertNormalization(RouterState):
    """Normalizes W x to z_e = w_e (x - m) / s_e, as the program does (dtopp/moe/expert_normalization.h).

    m is a running mean of x, and s_e^2 one of the square of w_e (x - m), over earlier steps, which are constants for the
    gradient. After the n-th step, m <- (m n' + M) / (n' + 1) with that step's mean M and n' = (n - 1) / 100.
    """

    state_names = ("input_mean_D", "logit_square_C", "steps")

    def __init__(self, hidden_size: int, num_logits: int) -> None:
        super().__init__()
        # On the CPU also under torch.device("meta"): a layer moves it to its own device.
        self.input_mean_D = torch.zeros(hidden_size, dtype=torch.float64, device="cpu")
        self.logit_square_C = torch.ones(num_logits, dtype=torch.float64, device="cpu")
        self.steps = torch.zeros((), dtype=torch.int64, device="cpu")  # with tokens

    def forward(self, logits_TC: Tensor, weight_CD: Tensor) -> Tensor:
        """logits_TC: W x. Differentiable in both arguments."""
        common_C = weight_CD @ self.input_mean_D.to(weight_CD.dtype)
        inverse_std_C = (self.logit_square_C + _VARIANCE_EPSILON).rsqrt().to(logits_TC.dtype)
        return (logits_TC - common_C) * inverse_std_C

    def update(self, sums_S: Tensor, tokens: Tensor) -> None:
        """Ends a step that has these logit_sums over its tokens. A step without tokens changes nothing."""
        num_logits, device = len(self.logit_square_C), self.steps.device
        means_S = (sums_S * (LOGIT_SUM_UNIT / tokens.clamp(min=1))).to(device)
        square_C = means_S[num_logits + 1 : 2 * num_logits + 1] * (self.logit_square_C + _VARIANCE_EPSILON)
        earlier, has_tokens = self.steps.double() / _STEPS_PER_AVERAGED_STEP, (tokens > 0).to(device)
        for own, now in ((self.input_mean_D, means_S[2 * num_logits + 1 :]), (self.logit_square_C, square_C)):
            own.copy_(torch.where(has_tokens, (own * earlier + now) / (earlier + 1), own))
        self.steps += has_tokens


def logit_sums(z_TC: Tensor, x_TD: Tensor | None) -> Tensor:
    """int64 [C + 1] or [2 C + 1 + D]: whole numbers of LOGIT_SUM_UNIT, so that their sums do not depend on the order.

    They are the sums of c, |c|^2 and, with x, z^2 and x. c is z minus the token's mean over its logits. NaN counts as 0.
    """
    z_TC = z_TC.detach()
    c_TC = z_TC - z_TC.mean(-1, keepdim=True)
    values = [c_TC, c_TC.square().sum(-1, keepdim=True)]
    if x_TD is not None:
        values += [z_TC.square(), x_TD.detach().to(z_TC.dtype)]
    return torch.cat([(value.nan_to_num(0).clamp(-_LARGEST_VALUE, _LARGEST_VALUE) / LOGIT_SUM_UNIT).round().long().sum(0)
                      for value in values])


def common_logit_share(sums_S: Tensor, num_logits: int, tokens: Tensor) -> float:
    """|mean of c|^2 / mean of |c|^2, from logit_sums over this number of tokens; 0 if all logits are 0."""
    squares = (sums_S[num_logits] * tokens / LOGIT_SUM_UNIT).item()
    return sums_S[:num_logits].square().sum().item() / squares if squares > 0 else 0.0
