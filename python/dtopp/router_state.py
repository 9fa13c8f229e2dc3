"""State that moves after each optimizer step."""

import torch
from torch import nn


class RouterState(nn.Module):
    """Tensors, named by state_names, that are no parameters and no buffers: .to(dtype) would convert buffers, and
    DistributedDataParallel broadcast them. RouterUpdater saves and loads them."""

    state_names: tuple[str, ...] = ()

    def place(self, device: torch.device) -> None:
        """Moves the state to a device. The meta device has no memory: the state stays where it is."""
        for name in self.state_names:
            value = getattr(self, name)
            if device.type != "meta" and value.is_meta:
                raise ValueError(f"{type(self).__name__}: {name} was made on the meta device; "
                                 "make it with device=\"cpu\"")
            if device.type != "meta" and value.device != device:
                setattr(self, name, value.to(device))
