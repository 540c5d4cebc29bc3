"""Protection against hangs, diverging losses, lost work, and two trainers in one run directory."""
