"""The loss as a function of parameters and tokens: the law, its fit, predictions with intervals, and their outcome."""
