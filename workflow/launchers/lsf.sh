# LSF, for workflow/launch; docs/extend/launcher.md says what each function does.

scheduler=LSF
job=$LSB_JOBID

describe_job() {
    local left starts words i
    read -ra words <<<"${LSB_MCPU_HOSTS-}" # names, each followed by a number of slots
    lsf_nodes=()
    for ((i = 0; i < ${#words[@]}; i += 2)); do lsf_nodes+=("${words[i]}"); done
    job_nodes=${#lsf_nodes[@]}
    job_head=${lsf_nodes[0]-}
    job_number=$job
    job_advice=' in LSB_MCPU_HOSTS; the job needs `-R "span[ptile=...]"`'
    left=$(ask bjobs -noheader -o time_left "$job") || return
    [[ ! $left =~ ([0-9]+):([0-9]+) ]] ||
        job_end=$(($(date +%s) + 3600 * 10#${BASH_REMATCH[1]} + 60 * 10#${BASH_REMATCH[2]}))
    starts=$(bhist -l "$job" 2>/dev/null | grep -c 'Starting (Pid' || true)
    job_restarts=$((starts > 0 ? starts - 1 : 0))
}

# blaunch passes on the environment and the working directory, and ends if its command does.
start_on_each_node() {
    local rank pids=() code=0
    for rank in "${!lsf_nodes[@]}"; do
        blaunch "${lsf_nodes[rank]}" env CARAVAN_NODE_RANK="$rank" "$@" &
        pids+=("$!")
    done
    trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM
    while [[ -n $(jobs -pr) ]]; do
        wait -n || {
            code=$?
            kill -TERM "${pids[@]}" 2>/dev/null || true # the others have lost a node
        }
    done
    trap - TERM
    return "$code"
}

requeue_job() {
    brequeue "$job" 2>&1 >/dev/null
}
