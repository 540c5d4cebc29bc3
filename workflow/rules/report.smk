# Scores and curves of all runs: tables, figures, and the report as pages. Snakemake's report shows a page per category;
# its first screen, ../report/workflow.rst, is the page `answer`.


# `expected` grows with the runs, and Linux limits an argument to 128 KiB, so it goes through a file: printf is a
# builtin of bash and has no limit.
rule summarize:
    input:
        models=all_models,
        exports=all_exports,
        evaluations=all_evaluations,
        baselines=all_baselines,
        contamination=all_contamination,
        ladders=all_predictions,
        corpora=corpora_of_all,
        lists=lists_of_all,
    output:
        scores=report(SCORES, caption="../report/scores.rst", category="Scores", labels={"page": "scores.csv, to save"}),
        answer=report(
            PAGES.format(category="answer"),
            caption="../report/answer.rst",
            category="Answer",
            labels={"page": "results of all runs"},
        ),
        data=report(
            PAGES.format(category="data"),
            caption="../report/data.rst",
            category="Data",
            labels={"page": "sources, data mix"},
        ),
        training=report(
            PAGES.format(category="training"),
            caption="../report/training.rst",
            category="Training",
            labels={"page": "curves, health"},
        ),
        tasks=report(
            PAGES.format(category="scores"),
            caption="../report/tasks.rst",
            category="Scores",
            labels={"page": "all tasks of all runs"},
        ),
        provenance=report(
            PAGES.format(category="provenance"),
            caption="../report/provenance.rst",
            category="Provenance",
            labels={"page": "digests, code, time"},
        ),
        page=PAGE,
        figures=FIGURES,
        text=TEXT,
        summary=SUMMARY,
    log:
        log_of("summarize"),
    localrule: True
    conda:
        "../envs/caravan.yml"
    resources:
        config=config_files,
        command=command_line,
    params:
        expected=expected,
        figures=figures_directory,
        pages=pages_directory,
        plan=PLAN,
        code=rerun_on_code("summarize"),
    shell:
        "printf %s {params.expected:q} > {log:q}.expect && "
        "python -m stages.summarize --models {input.models:q} --exports {input.exports:q}"
        " --evaluations {input.evaluations:q} --baselines {input.baselines:q} --contamination {input.contamination:q}"
        " --ladders {input.ladders:q} --corpora {input.corpora:q} --lists {input.lists:q} --plan {params.plan:q}"
        " --config {resources.config:q} --made-by {resources.command:q}"
        " --expect {log:q}.expect --scores {output.scores:q}"
        " --figures {params.figures:q} --page {output.page:q} --pages {params.pages:q} --text {output.text:q} --output {output.summary:q} --log {log:q} --code {params.code}"
