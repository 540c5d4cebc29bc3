"""Results as data: manifests, rows of scores, differences of scores, curves and health of runs, tables of runs."""
