# Slurm, for workflow/launch; docs/extend/launcher.md says what each function does.

scheduler=Slurm
job=$SLURM_JOB_ID
for command in scontrol srun; do
    type -P "$command" >/dev/null || fail "$command is not on the PATH of ${SLURMD_NODENAME-$HOSTNAME}: if this is a container," \
        "start the jobs outside of it, with CARAVAN_CONTAINER or CARAVAN_SRUN in profiles/slurm/environment.sh"
done

describe_job() {
    local described
    described=$(ask scontrol show job --oneliner "$job") || return
    job_nodes=$(word NumNodes "$described")
    job_head=$(scontrol show hostnames "$(word NodeList "$described")" | head -n 1)
    job_restarts=$(word Restarts "$described")
    job_number=$job
    job_advice='; without `gres`, the profile needs `tasks` with the number of `nodes`'
    local end
    end=$(word EndTime "$described") # `Unknown` without a time limit
    [[ $end != *:* ]] || job_end=$(date --date="$end" +%s)
}

# Print the value of a key in KEY=VALUE words; nothing if there is no such key.
word() {
    [[ ! $2 =~ (^|\ )$1=([^ ]*) ]] || echo "${BASH_REMATCH[2]}"
}

# On SageMaker HyperPod, srun restarts a step whose node failed, after it has replaced the node.
start_on_each_node() {
    local more
    read -ra more <<<"${CARAVAN_SRUN-}"
    [[ ! -d /opt/sagemaker_cluster || " ${more[*]} " == *" --auto-resume"* ]] || more+=(--auto-resume=1)
    srun --nodes="$nodes" --ntasks-per-node=1 --cpus-per-task="$cpus" --kill-on-bad-exit=1 "${more[@]}" \
        bash -c 'CARAVAN_NODE_RANK=$SLURM_NODEID exec "$@"' step "$@"
}

requeue_job() {
    local reason
    reason=$(scontrol requeue "$job" 2>&1) && return
    echo "${reason#slurm_requeue error: }"
    return 1
}
