"""Sweeps and ladders: the runs that they stand for, with names and checks."""
