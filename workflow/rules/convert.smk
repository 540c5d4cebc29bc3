# Models -> Hugging Face exports, each compared with its model.


# The priority lets a milestone be scored before the next one is trained.
rule convert:
    input:
        model=model_of_milestone,
        corpus=corpus_of_run,
        tokenizer=tokenizer_of_run,
    output:
        result("convert"),
    log:
        log_of("convert"),
    priority: 1
    conda:
        "../envs/caravan.yml"
    resources:
        accelerator=1,
    params:
        recipe=recipe_of("convert"),
        code=rerun_on_code("convert"),
    shell:
        "python -m stages.convert --model {input.model:q} --corpus {input.corpus:q} --tokenizer {input.tokenizer:q}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {params.code}"
