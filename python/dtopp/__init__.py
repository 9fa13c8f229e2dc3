"""Mixture-of-Experts layers whose tokens choose how many experts they use, within a fixed budget (DTop-p), and the models that
`dtopp train` makes of them.

Importing this package does not import torch until one of its names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtopp import functional as functional
    from dtopp.bias_routers import DTopPBias as DTopPBias, TopKBias as TopKBias, TopKBiasZero as TopKBiasZero
    from dtopp.checkpoints import load as load
    from dtopp.functional import Routing as Routing
    from dtopp.hash_router import Hash as Hash
    from dtopp.layers import Experts as Experts, Gate as Gate, MoE as MoE, set_loss_scale as set_loss_scale
    from dtopp.router_updater import RouterUpdater as RouterUpdater
    from dtopp.router_updater import ThresholdController as ThresholdController
    from dtopp.routers import DTopP as DTopP, Router as Router, RouterInput as RouterInput
    from dtopp.routers import StepCounts as StepCounts, TopK as TopK, TopP as TopP
    from dtopp.threshold_routers import ExpertThreshold as ExpertThreshold, Relu as Relu

__version__ = "0.2.0"

_HOMES = {
    "DTopP": "routers",
    "DTopPBias": "bias_routers",
    "ExpertThreshold": "threshold_routers",
    "Experts": "layers",
    "Gate": "layers",
    "Hash": "hash_router",
    "MoE": "layers",
    "Relu": "threshold_routers",
    "Router": "routers",
    "RouterInput": "routers",
    "RouterUpdater": "router_updater",
    "Routing": "functional",
    "StepCounts": "routers",
    "ThresholdController": "router_updater",
    "TopK": "routers",
    "TopKBias": "bias_routers",
    "TopKBiasZero": "bias_routers",
    "TopP": "routers",
    "load": "checkpoints",
    "set_loss_scale": "layers",
}
__all__ = ["DTopP", "DTopPBias", "ExpertThreshold", "Experts", "Gate", "Hash", "MoE", "Relu", "Router", "RouterInput",
           "RouterUpdater", "Routing", "StepCounts", "ThresholdController", "TopK", "TopKBias", "TopKBiasZero", "TopP",
           "functional", "load", "set_loss_scale"]


def __getattr__(name: str) -> Any:
    if name == "functional":
        return import_module("dtopp.functional")
    if name in _HOMES:
        return getattr(import_module(f"dtopp.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dtopp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
