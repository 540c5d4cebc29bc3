# Ladders of small models -> the predicted loss of their target, which is not an input.


rule predict:
    input:
        models=models_of_ladder,
        corpus=corpus_of_ladder,
        model_config=model_config_of_ladder,
    output:
        result("predict"),
    log:
        log_of("predict"),
    priority: 1
    localrule: True
    conda:
        "../envs/caravan.yml"
    params:
        recipe=prediction_recipe,
        model_config=option_of("model_config"),
        code=rerun_on_code("predict"),
    shell:
        "python -m stages.predict --models {input.models:q} --corpus {input.corpus:q} {params.model_config:q}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {params.code}"
