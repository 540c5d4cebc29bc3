"""What the Snakefile imports."""
