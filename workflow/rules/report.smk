# Scores and curves of all runs in one table and three figures.


# `expected` grows with the runs, and Linux limits an argument to 128 KiB, so it goes through a file: printf is a
# builtin of bash and has no limit.
rule summarize:
    input:
        models=all_models,
        exports=all_exports,
        evaluations=all_evaluations,
        baselines=all_baselines,
        contamination=all_contamination,
        ladders=predictions_of_all,
    output:
        scores=report(SCORES, caption="../report/scores.rst", category="Scores"),
        loss=report(FIGURES[0], caption="../report/loss.rst", category="Training"),
        bits=report(FIGURES[1], caption="../report/bits_per_byte.rst", category="Scores"),
        accuracy=report(FIGURES[2], caption="../report/accuracy.rst", category="Scores"),
        text=TEXT,
        summary=SUMMARY,
    log:
        f"{LOGS}/summarize.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        expected=expected,
        figures=figures_directory,
        code=CODE["summarize"],
    shell:
        "printf %s {params.expected:q} > {log:q}.expect && "
        "python -m stages.summarize --models {input.models:q} --exports {input.exports:q}"
        " --evaluations {input.evaluations:q} --baselines {input.baselines:q} --contamination {input.contamination:q}"
        " --ladders {input.ladders:q}"
        " --expect {log:q}.expect --scores {output.scores:q}"
        " --figures {params.figures:q} --text {output.text:q} --output {output.summary:q} --log {log:q} --code {params.code}"
