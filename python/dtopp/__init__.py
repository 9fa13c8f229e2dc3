"""Mixture-of-Experts layers whose tokens choose how many experts they use, within a fixed budget (DTop-p).

Importing this package does not import torch until one of its names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtopp import functional as functional
    from dtopp.controller import ThresholdController as ThresholdController
    from dtopp.functional import Routing as Routing
    from dtopp.layers import DTopPRouter as DTopPRouter, Experts as Experts, MoE as MoE
    from dtopp.layers import set_loss_scale as set_loss_scale

__version__ = "0.2.0"

_HOMES = {
    "DTopPRouter": "layers",
    "Experts": "layers",
    "MoE": "layers",
    "Routing": "functional",
    "ThresholdController": "controller",
    "set_loss_scale": "layers",
}
__all__ = ["DTopPRouter", "Experts", "MoE", "Routing", "ThresholdController", "functional", "set_loss_scale"]


def __getattr__(name: str) -> Any:
    if name == "functional":
        return import_module("dtopp.functional")
    if name in _HOMES:
        return getattr(import_module(f"dtopp.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dtopp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
