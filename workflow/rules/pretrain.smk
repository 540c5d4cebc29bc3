# Token shards -> models: one job per milestone, each resumes from the milestone before.


# `shell` never changes, and `params` holds only what the result depends on: Snakemake would retrain on any changed
# letter. How the job runs comes through `resources`, which trigger nothing.
rule pretrain:
    input:
        corpus=corpus_of_run,
        model_config=model_config_of_run,
        initial=initial_of_run,
        previous=previous_milestone,
    output:
        result("pretrain"),
    log:
        log_of("pretrain"),
    wildcard_constraints:
        run=PRETRAINED,
    conda:
        "../envs/caravan.yml"
    resources:
        accelerator=1,
        nodes=0,
        ranks=1,
        omp_threads=1,
        operation=training_operation,
        code=CODE["pretrain"],
        attempt=attempt_of_job,
    params:
        recipe=training_recipe,
        model_config=option_of("model_config"),
        initial=initial_option,
        previous=option_of("previous"),
        train_dir=directory_of_run("train"),
        code=rerun_on_code("pretrain"),
    shell:
        '"$CARAVAN"/workflow/launch --nodes {resources.nodes} --cpus {threads} --threads {resources.omp_threads}'
        " {resources.ranks} -m stages.pretrain --corpus {input.corpus:q} --until {wildcards.step}"
        " {params.model_config:q} {params.initial:q} {params.previous:q}"
        " --train-dir {params.train_dir:q} --output {output:q} --recipe {params.recipe:q}"
        " --operation {resources.operation:q} --log {log:q} --code {resources.code}"
        " --attempt {resources.attempt}"
