"""The recipe keys of the objectives of fine-tuning. Imports no torch: the workflow checks them before the first job."""

from dataclasses import dataclass

from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class DpoRecipe:
    """Direct preference optimization (arXiv 2305.18290)."""

    beta: float = identity(above=0)
    """Strength of the pull to the initial model: a reward is beta times the log-ratio of the two models' probabilities.
    0.1 is common; smaller values let the model move further away."""

    label_smoothing: float = identity(0.0, minimum=0, maximum=0.5)
    """Probability that a preference is noted the wrong way round (conservative DPO)."""
