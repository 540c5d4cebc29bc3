"""What Slurm says of nodes, limits and jobs, and the check of a plan against it."""
