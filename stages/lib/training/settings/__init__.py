"""The settings of a training: the keys of its recipe, and the options of one start."""
