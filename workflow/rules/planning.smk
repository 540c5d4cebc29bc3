# The plan of all runs before anything is submitted: the target `plan`. It has no output, so that it always runs.


rule plan:
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    conda:
        "../envs/caravan.yml"
    params:
        request=plan_request,
        text=PLAN_TEXT,
        json=PLAN,
    shell:
        "printf %s {params.request:q} > {log:q}.request && "
        "python -m tools.plan --text {params.text:q} --json {params.json:q} --cache .snakemake/caravan"
        " --log {log:q}"
        " < {log:q}.request"
