# Targets: `snakemake scores` makes all scores and what they need.
# The target `all` stands in the Snakefile, since Snakemake takes the default target only from there.


rule tokenizers:
    input:
        all_tokenizers,
    localrule: True


rule tokens:
    input:
        all_corpora,
    localrule: True


rule models:
    input:
        all_models,
    localrule: True


rule exports:
    input:
        all_exports,
    localrule: True


rule scores:
    input:
        all_scores,
    localrule: True


rule cards:
    input:
        all_cards,
    localrule: True


# Rates of contaminated items of each suite; nothing without `contamination` in the config.
rule contamination:
    input:
        all_contamination,
    localrule: True


# Scores of tuned runs, and of the models that they were tuned from, by the same suites.
rule tuned:
    input:
        all_tuned,
    localrule: True


rule report:
    input:
        SCORES,
        FIGURES,
        PAGE,
        TEXT,
        SUMMARY,
    localrule: True
