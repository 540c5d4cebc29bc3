"""Changes to Snakemake's executors."""
