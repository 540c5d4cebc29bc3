"""Two optimizers, each of parameters of its own, behind the interface of one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stages.lib.training.optimizers.optimizer import Optimizer


class Combined:
    """Optimizers that step together. They share one `state`, and `found_inf` is that of all of them."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.state: Any = defaultdict(dict)
        self._optimizer_of = {}
        for optimizer in optimizers:
            optimizer.state = self.state
            for group in optimizer.param_groups:
                self._optimizer_of |= dict.fromkeys(group["params"], optimizer)

    @property
    def found_inf(self) -> torch.Tensor | None:
        """The flag of a step that changes nothing."""
        return self.optimizers[0].found_inf

    @found_inf.setter
    def found_inf(self, flag: torch.Tensor | None) -> None:
        for optimizer in self.optimizers:
            optimizer.found_inf = flag

    def step(self) -> None:
        """Update all parameters and their state."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return self._optimizer_of[parameter].empty_state(parameter)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return self._optimizer_of[parameter].state_bytes(parameter)
