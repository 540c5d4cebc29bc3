"""Queries of Slurm for nodes, limits and jobs; the check of a plan against them."""
