# Items of suites -> their n-grams in each part of a corpus -> contaminated items. Only for a config with
# `contamination`; the items also for a corpus with `tokenize.decontaminate`.


rule list_items:
    output:
        result("list_items"),
    log:
        log_of("list_items"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["list_items"],
    params:
        recipe=items_recipe,
        code=rerun_on_code("list_items"),
    shell:
        "python -m stages.list_items --suite {wildcards.suite} --output {output:q} --recipe {params.recipe:q}"
        " --log {log:q} --code {resources.code}"


rule find_overlaps:
    input:
        suite_items=items_of_suite,
        part=part_of_corpus,
        tokenizer=tokenizer_of_corpus,
    output:
        result("find_overlaps"),
    log:
        log_of("find_overlaps"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["find_overlaps"],
    params:
        recipe=contamination_recipe,
        code=rerun_on_code("find_overlaps"),
    shell:
        "python -m stages.find_overlaps --items {input.suite_items:q} --part {input.part:q} --tokenizer {input.tokenizer:q}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {resources.code}"


rule find_contamination:
    input:
        corpus=corpus_of_wildcard,
        suite_items=items_of_suite,
        overlaps=of_all_parts(OVERLAPS),
    output:
        result("find_contamination"),
    log:
        log_of("find_contamination"),
    localrule: True
    conda:
        "../envs/caravan.yml"
    params:
        recipe=contamination_recipe,
        code=rerun_on_code("find_contamination"),
    shell:
        "python -m stages.find_contamination --corpus {input.corpus:q} --items {input.suite_items:q}"
        " --overlaps {input.overlaps:q} --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {params.code}"
