"""The registry of architectures. docs/extend/architecture.md lists what a new one needs. Imports no torch."""

from stages.lib.model.architectures.llama import LlamaRecipe
from stages.lib.model.architectures.mistral import MistralRecipe
from stages.lib.model.architectures.mixtral import MixtralRecipe
from stages.lib.model.architectures.qwen3 import Qwen3Recipe
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import Variants

ARCHITECTURES = Variants[ModelRecipe](
    "architecture",
    {
        "llama": LlamaRecipe,
        "mistral": MistralRecipe,
        "mixtral": MixtralRecipe,
        "qwen3": Qwen3Recipe,
    },
)
"""The architectures by the `architecture` of a recipe, `model_type` in config.json; the first one if it is missing."""
