"""Modules that the Snakefile imports, and the generator of the schema."""
