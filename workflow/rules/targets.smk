# What can be asked for by name: `snakemake scores` makes all scores, and what they need.
# The target `all` stands in the Snakefile: Snakemake takes a default from nowhere else.


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
        all_evaluations,
    localrule: True


# Tuned runs, and the models that they were tuned from, by the same suites.
rule tuned:
    input:
        all_tuned,
    localrule: True


rule report:
    input:
        SCORES,
        FIGURES,
        TEXT,
        SUMMARY,
    localrule: True
