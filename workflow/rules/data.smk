# Sources -> lists -> tokenizers -> token shards.


# Parsing the workflow never reads a source: a job lists its files, and `-R list` notices new ones.
rule list:
    input:
        classifier=classifier_of_source,
    output:
        result("list"),
    log:
        log_of("list"),
    localrule: True
    conda:
        "../envs/caravan.yml"
    resources:
        operation=source_operation,
        code=CODE["list"],
    params:
        recipe=source_recipe,
        classifier=option_of("classifier"),
        code=rerun_on_code("list"),
    shell:
        "python -m stages.list --name {wildcards.source} --output {output:q} {params.classifier:q}"
        " --recipe {params.recipe:q} --operation {resources.operation:q} --log {log:q} --code {resources.code}"


rule train_classifier:
    input:
        lists=classifier_lists,
    output:
        result("train_classifier"),
    log:
        log_of("train_classifier"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["train_classifier"],
    params:
        recipe=recipe_of("train_classifier"),
        code=rerun_on_code("train_classifier"),
    shell:
        "python -m stages.train_classifier --lists {input.lists:q} --output {output:q}"
        " --recipe {params.recipe:q} --log {log:q} --code {resources.code}"


rule train_tokenizer:
    input:
        lists=tokenizer_lists,
        file=tokenizer_file,
    output:
        result("train_tokenizer"),
    log:
        log_of("train_tokenizer"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["train_tokenizer"],
    params:
        recipe=recipe_of("train_tokenizer"),
        code=rerun_on_code("train_tokenizer"),
    shell:
        "python -m stages.train_tokenizer --lists {input.lists:q} --output {output:q}"
        " --recipe {params.recipe:q} --log {log:q} --code {resources.code}"


# Only for a corpus with `tokenize.duplicates: drop`: its text is read once before it is tokenized.
rule hash_documents:
    input:
        list=list_of_part,
    output:
        result("hash_documents"),
    log:
        log_of("hash_documents"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["hash_documents"],
    params:
        parts=parts_of_wildcard,
        code=rerun_on_code("hash_documents"),
    shell:
        "python -m stages.hash_documents --list {input.list:q} --part {wildcards.part} --parts {params.parts}"
        " --output {output:q} --log {log:q} --code {resources.code}"


rule find_duplicates:
    input:
        of_all_parts(HASHES),
    output:
        result("find_duplicates"),
    log:
        log_of("find_duplicates"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["find_duplicates"],
    params:
        code=rerun_on_code("find_duplicates"),
    shell:
        "python -m stages.find_duplicates --hashes {input:q} --output {output:q} --log {log:q} --code {resources.code}"


# Only for a corpus with `near_duplicates`: its text is read once to be sketched, and once to copy the candidates.
rule sketch:
    input:
        list=list_of_part,
    output:
        result("sketch"),
    log:
        log_of("sketch"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["sketch"],
    params:
        recipe=recipe_of("sketch"),
        parts=parts_of_wildcard,
        code=rerun_on_code("sketch"),
    shell:
        "python -m stages.sketch --list {input.list:q} --part {wildcards.part} --parts {params.parts}"
        " --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {resources.code}"


rule find_candidates:
    input:
        of_all_parts(SKETCHES),
    output:
        result("find_candidates"),
    log:
        log_of("find_candidates"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["find_candidates"],
    params:
        code=rerun_on_code("find_candidates"),
    shell:
        "python -m stages.find_candidates --sketches {input:q} --output {output:q} --log {log:q} --code {resources.code}"


rule copy_candidates:
    input:
        list=list_of_part,
        candidates=candidates_of_corpus,
    output:
        result("copy_candidates"),
    log:
        log_of("copy_candidates"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["copy_candidates"],
    params:
        parts=parts_of_wildcard,
        code=rerun_on_code("copy_candidates"),
    shell:
        "python -m stages.copy_candidates --candidates {input.candidates:q} --list {input.list:q}"
        " --part {wildcards.part} --parts {params.parts} --output {output:q} --log {log:q} --code {resources.code}"


rule verify_duplicates:
    input:
        candidates=candidates_of_corpus,
        copies=of_all_parts(COPIES),
        duplicates=duplicates_of_corpus,
    output:
        result("verify_duplicates"),
    log:
        log_of("verify_duplicates"),
    conda:
        "../envs/caravan.yml"
    resources:
        code=CODE["verify_duplicates"],
    params:
        recipe=recipe_of("verify_duplicates"),
        duplicates=option_of("duplicates"),
        code=rerun_on_code("verify_duplicates"),
    shell:
        "python -m stages.verify_duplicates --candidates {input.candidates:q} --copies {input.copies:q}"
        " {params.duplicates:q} --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {resources.code}"


rule tokenize:
    input:
        list=list_of_part,
        tokenizer=tokenizer_of_corpus,
        duplicates=duplicates_of_corpus,
        near_duplicates=near_duplicates_of_corpus,
        suite_items=items_of_corpus,
    output:
        result("tokenize"),
    log:
        log_of("tokenize"),
    conda:
        "../envs/caravan.yml"
    resources:
        max_malformed=max_malformed_of_part,
        code=CODE["tokenize"],
    params:
        recipe=recipe_of("tokenize"),
        leaving_out=leaving_out_options,
        code=rerun_on_code("tokenize"),
    shell:
        "python -m stages.tokenize --list {input.list:q} --tokenizer {input.tokenizer:q} --part {wildcards.part}"
        " {params.leaving_out} --max-malformed {resources.max_malformed} --output {output:q} --recipe {params.recipe:q} --log {log:q} --code {resources.code}"


rule index:
    input:
        tokenizer=tokenizer_of_corpus,
        parts=of_all_parts(PART),
    output:
        result("index"),
    log:
        log_of("index"),
    localrule: True
    conda:
        "../envs/caravan.yml"
    resources:
        max_malformed=max_malformed_of_corpus,
        code=CODE["index"],
    params:
        code=rerun_on_code("index"),
    shell:
        "python -m stages.index --tokenizer {input.tokenizer:q} --parts {input.parts:q} --output {output:q}"
        " --max-malformed {resources.max_malformed:q} --log {log:q} --code {resources.code}"
