# Milestones of a run -> the mean of their weights.


rule average_weights:
    input:
        models=models_to_average,
    output:
        result("average_weights"),
    log:
        log_of("average_weights"),
    wildcard_constraints:
        run=AVERAGED,
    conda:
        "../envs/caravan.yml"
    params:
        recipe=recipe_of("average_weights"),
        directory=directory_of_run("average"),
        code=rerun_on_code("average_weights"),
    shell:
        "python -m stages.average_weights --models {input.models:q} --directory {params.directory:q}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {params.code}"
