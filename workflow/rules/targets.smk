# Targets: `snakemake scores` makes all scores and what they need. `tuned` are the scores of tuned runs, and of the models
# that they were tuned from, by the same suites; `contamination` has nothing without its key in the config.
# The target `all` stands in the Snakefile, since Snakemake takes the default target only from there.


for target, files_of_target in TARGETS.items():

    rule:
        name:
            target
        input:
            files_of_target,
        localrule: True


rule report:
    input:
        SCORES,
        FIGURES,
        PAGE,
        TEXT,
        SUMMARY,
    localrule: True
