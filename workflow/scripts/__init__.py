"""Modules that the Snakefile imports, and the generator of the schema."""

import sys
from pathlib import Path

# a ladder counts the parameters of its models with the library of the same checkout
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
