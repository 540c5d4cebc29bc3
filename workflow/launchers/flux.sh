# Flux, for workflow/launch; docs/extend/launcher.md says what each function does.

scheduler=Flux
job=$FLUX_JOB_ID

describe_job() {
    local names left
    names=$(ask flux hostlist --expand instance) || return
    read -ra flux_nodes <<<"$names"
    job_nodes=${#flux_nodes[@]}
    job_head=${flux_nodes[0]-}
    job_number=$(flux job id --to=dec "$job")
    job_advice='; the job needs `flux batch --nodes`'
    job_restarts=0 # Flux has no requeue
    left=$(ask flux job timeleft) || return
    [[ ! $left =~ ^[0-9]{1,9}$ ]] || job_end=$(($(date +%s) + left)) # `infinity` without a time limit
}

start_on_each_node() {
    flux run --nodes="$nodes" --ntasks="$nodes" --cores-per-task="$cpus" --exclusive --setopt=exit-on-error \
        bash -c 'CARAVAN_NODE_RANK=$FLUX_TASK_RANK exec "$@"' step "$@"
}

requeue_job() {
    echo 'Flux has no command for it'
    return 1
}
