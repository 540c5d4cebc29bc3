# Scores of the runs of a sweep -> the manifest of the best one, from which other runs start.


# Its path is known before the scores are, so the plan needs no second look: only the content of the manifest depends on
# them. It has the digest of the best model's checkpoint, and so has all that is trained from it.
rule select_best:
    input:
        models=models_of_sweep,
        evaluations=evaluations_of_sweep,
    output:
        result("select_best"),
    log:
        log_of("select_best"),
    localrule: True
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["select_best"],
    params:
        recipe=best_recipe,
        code=rerun_on_code("select_best"),
    shell:
        "python -m stages.select_best --models {input.models:q} --evaluations {input.evaluations:q} --output {output:q}"
        " --recipe {params.recipe:q} --log {log:q} --code {resources.code}"
