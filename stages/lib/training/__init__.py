"""The training loop, and what only a training needs."""
