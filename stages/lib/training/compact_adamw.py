"""AdamW whose moments are kept in bfloat16."""

import torch

from stages.lib.distributed import local_shards

MOMENTS = ("exp_avg", "exp_avg_sq")


class CompactAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) that keeps its moments in bfloat16 and computes in float32, or in a wider dtype of the
    parameters. State keys and groups are those of torch.optim.AdamW.

    Parameters are updated one at a time, so that no more than a few float32 copies of the largest shard stand beside
    the state. `found_inf`, a float tensor of one element on the parameters' device or None, makes `step` change nothing
    where it is 1.0, and the host does not wait for it.
    """

    def __init__(self, groups, lr, betas, eps):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.found_inf = None

    @torch.no_grad()
    def step(self):
        """Update the parameters that have a gradient, and their state."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def empty_state(self, parameter):
        """The state of a parameter before its first step."""
        zeros = {moment: torch.zeros_like(parameter, dtype=torch.bfloat16).detach() for moment in MOMENTS}
        return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **zeros}

    def _update(self, parameter, group):
        if not self.state[parameter]:
            self.state[parameter] = self.empty_state(parameter)
        state = self.state[parameter]
        weight, gradient, *kept = (
            local_shards.local(t) for t in (parameter, parameter.grad, *(state[m] for m in MOMENTS))
        )
        precision = torch.promote_types(weight.dtype, torch.float32)
        gradient, first, second = (tensor.to(precision) for tensor in (gradient, *kept))
        beta1, beta2 = group["betas"]
        step = state["step"].double() + 1
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
        change = (first / (1 - beta1**step)).div_(denominator).mul_(-group["lr"])
        change.add_(weight, alpha=-group["lr"] * group["weight_decay"])
        for old, new in ((state["step"], step), (kept[0], first), (kept[1], second), (weight, change.add_(weight))):
            self._replace(old, new.to(old.dtype))

    def _replace(self, old, new):
        if self.found_inf is None:
            old.copy_(new)
        else:
            torch.where(self.found_inf == 1, old, new, out=old)
