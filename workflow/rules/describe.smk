# Exports and their scores -> model cards. Nothing is made from a card.


rule describe:
    input:
        model=model_of_milestone,
        export=export_of_milestone,
        corpus=corpus_of_run,
        lists=lists_of_run,
        evaluations=evaluations_of_milestone,
        baselines=baselines_of_card,
        contamination=contamination_of_card,
    output:
        result("describe"),
    log:
        log_of("describe"),
    localrule: True
    conda:
        "../envs/caravan.yml"
    params:
        recipe=recipe_of("describe"),
        licenses=licenses_option,
        code=rerun_on_code("describe"),
    shell:
        "python -m stages.describe --name {wildcards.run:q} --model {input.model:q} --export {input.export:q}"
        " --corpus {input.corpus:q} --lists {input.lists:q} --evaluations {input.evaluations:q}"
        " --baselines {input.baselines:q} --contamination {input.contamination:q} {params.licenses:q} --output {output:q} --recipe {params.recipe:q}"
        " --log {log:q} --code {params.code}"
