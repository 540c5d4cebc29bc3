"""A config: its files, keys, references and runs."""
