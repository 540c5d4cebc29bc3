"""A conversation with a model in the terminal: its history, the chat template, and the loop of `tools.generate`."""
