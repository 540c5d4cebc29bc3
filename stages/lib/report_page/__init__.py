"""The report as self-contained HTML pages: results/card.html, and one page per category of Snakemake's report."""
