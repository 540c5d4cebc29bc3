"""NorMuon (arXiv 2510.05491): Muon whose rows change alike, for the matrices of layers.

Orthogonalization leaves some neurons with a much larger change than others. NorMuon divides each row, the inputs of one
neuron, by the root of its mean square over past steps, and scales the matrix back to the norm that it had.
"""

from __future__ import annotations

import torch

from stages.lib.distributed.row_exchange import Matrix
from stages.lib.training.optimizers.muon import Muon, newton_schulz, replace
from stages.lib.training.optimizers.recipe import NorMuonRecipe

SMALLEST = 1e-10
"""Lower bound of what a row and a norm are divided by."""

SECOND = "second_momentum_buffer"
"""Key of the state, as NorMuon's authors name it: the mean square of the change of each row, [rows, 1]."""


class NorMuon(Muon):
    """Muon with a second moment per row, in the parameters' dtype, sharded as they are.

    The owner of a matrix gets the second moments with its rows, and sends the new ones back, so that a step does not
    depend on the sharding. They travel bit by bit, as columns of the dtype in which matrices are sent.
    """

    def more_columns(self, dtype: torch.dtype, sent: torch.dtype) -> int:
        """Return the columns that are sent with a matrix: the bits of one number of the parameters' dtype."""
        return dtype.itemsize // sent.itemsize

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step: zeros."""
        return super().empty_state(parameter) | {SECOND: torch.zeros_like(parameter[:, :1]).detach()}

    def _rows_sent(self, matrix: Matrix) -> torch.Tensor:
        direction = super()._rows_sent(matrix).to(self.exchange.device, self.exchange.dtype)
        second = self._second(matrix).to(self.exchange.device).contiguous()
        return torch.cat([direction, second.view(direction.dtype)], dim=1)

    def _function(self, whole: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.recipe, NorMuonRecipe)
        columns, dtype = whole.shape[1] - self.exchange.more_columns, self.param_groups[0]["params"][0].dtype
        change = newton_schulz(whole[:, :columns], self.recipe.ns_steps).to(dtype)
        second = whole[:, columns:].contiguous().view(dtype)
        second = second.lerp(change.square().mean(dim=1, keepdim=True), 1 - self.recipe.beta2)
        even = change / second.sqrt().clamp(min=SMALLEST)
        even *= change.norm() / even.norm().clamp(min=SMALLEST)
        return torch.cat([even.to(whole.dtype), second.view(whole.dtype)], dim=1)

    def _change(self, matrix: Matrix, rows: torch.Tensor) -> torch.Tensor:
        change, second = rows.split([matrix.columns, self.exchange.more_columns], dim=1)
        kept = self._second(matrix)
        replace(kept, second.contiguous().view(kept.dtype).to(kept.device), self.found_inf)
        return change

    def _second(self, matrix: Matrix) -> torch.Tensor:
        """Return this rank's rows of the second moments of a matrix."""
        return self.exchange.local(matrix, self.state[matrix.parameter][SECOND])
