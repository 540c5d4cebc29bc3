# Exports and baselines -> scores, one file per suite.


rule evaluate:
    input:
        export=export_of_evaluation,
        corpus=corpus_of_run,
        prompt_completion=prompt_completion_of_suite,
    output:
        result("evaluate"),
    log:
        log_of("evaluate"),
    priority: 1
    conda:
        "../envs/caravan.yml"
    resources:
        accelerator=1,
        ranks=1,
        omp_threads=threads_of_job,
    params:
        recipe=evaluate_recipe,
        prompt_completion=option_of("prompt_completion"),
        code=rerun_on_code("evaluate"),
    shell:
        '"$CARAVAN"/workflow/launch --threads {resources.omp_threads} {resources.ranks} -m stages.evaluate'
        " --export {input.export:q} --corpus {input.corpus:q} {params.prompt_completion:q}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {params.code}"


rule evaluate_baseline:
    input:
        model=files_of_baseline,
        corpus=corpus_of_wildcard,
        prompt_completion=prompt_completion_of_suite,
    output:
        result("evaluate_baseline"),
    log:
        log_of("evaluate_baseline"),
    conda:
        "../envs/caravan.yml"
    resources:
        accelerator=1,
        ranks=1,
        omp_threads=threads_of_job,
    params:
        baseline=baseline_option,
        recipe=evaluate_recipe,
        prompt_completion=option_of("prompt_completion"),
        code=rerun_on_code("evaluate_baseline"),
    shell:
        '"$CARAVAN"/workflow/launch --threads {resources.omp_threads} {resources.ranks} -m stages.evaluate'
        " {params.baseline:q} --corpus {input.corpus:q} {params.prompt_completion:q}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {params.code}"


# Run by name only, on a node with internet access: compute nodes may have none.
rule prefetch:
    log:
        f"{RESULTS}/logs/prefetch.log",
    localrule: True
    conda:
        "../envs/caravan.yml"
    params:
        tasks=tasks_of_suites(),
        include=include_paths(),
        trust=trust_task_code(),
        baselines=baselines_of_hub(),
    shell:
        "python -m tools.prefetch --tasks {params.tasks:q} --include-path {params.include:q} {params.trust}"
        " --baselines {params.baselines:q} --log {log:q}"
