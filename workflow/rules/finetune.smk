# Models, and conversations, prompts and completions, or text -> tuned models: one job per milestone, as in pretrain.smk.


rule finetune:
    input:
        sources=tuning_sources_of_run,
        template=template_of_run,
        corpus=corpus_of_run,
        tokenizer=tokenizer_of_run,
        initial=initial_of_run,
        previous=previous_milestone,
    output:
        result("finetune"),
    log:
        log_of("finetune"),
    wildcard_constraints:
        run=TUNED,
    conda:
        "../envs/caravan.yml"
    resources:
        accelerator=1,
        nodes=0,
        ranks=1,
        omp_threads=1,
        operation=training_operation,
        code=CODE["finetune"],
        attempt=attempt_of_job,
    params:
        recipe=training_recipe,
        until=milestone,
        initial=initial_option,
        previous=option_of("previous"),
        train_dir=directory_of_run("train"),
        code=rerun_on_code("finetune"),
    shell:
        '"$CARAVAN"/workflow/launch --nodes {resources.nodes} --cpus {threads} --threads {resources.omp_threads}'
        " {resources.ranks} -m stages.finetune --sources {input.sources:q} --corpus {input.corpus:q}"
        " --tokenizer {input.tokenizer:q} --until {params.until} {params.initial:q} {params.previous:q}"
        " --train-dir {params.train_dir:q} --output {output:q} --recipe {params.recipe:q}"
        " --operation {resources.operation:q} --log {log:q} --code {resources.code}"
        " --attempt {resources.attempt}"
