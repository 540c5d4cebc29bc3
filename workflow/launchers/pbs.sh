# PBS (OpenPBS, PBS Professional, Torque), for workflow/launch; docs/extend/launcher.md says what each function does.

scheduler=PBS
job=$PBS_JOBID

describe_job() {
    local described path=${PBS_NODEFILE-}
    [[ -r $path ]] || fail "PBS_NODEFILE must be a file that names the nodes of job $job, got '$path'"
    # a node has a line per chunk or core
    mapfile -t pbs_lines <"$path"
    mapfile -t pbs_nodes < <(awk 'NF && !seen[$1]++ {print $1}' "$path")
    job_nodes=${#pbs_nodes[@]}
    job_head=${pbs_nodes[0]-}
    job_number=${job%%[!0-9]*} # as in 1234.server or 1234[7].server
    job_advice=" in $path; the job needs \`-l select=$nodes\` and \`-l place=scatter\`"
    described=$(ask qstat -f "$job") || return
    local runs begun
    runs=$(attribute run_count "$described")
    [[ -n $runs ]] || runs=$(attribute start_count "$described") # Torque
    job_restarts=$((${runs:-1} > 0 ? ${runs:-1} - 1 : 0))
    begun=$(attribute stime "$described")
    [[ -n $begun ]] || begun=$(attribute start_time "$described") # Torque
    local walltime
    walltime=$(attribute Resource_List.walltime "$described")
    if [[ -n $walltime && -n $begun ]]; then
        job_end=$(($(date --date="$begun" +%s) + $(seconds_of "$walltime")))
    fi
}

# Print an attribute of `qstat -f`; nothing if the job does not have it.
attribute() {
    awk -v key="$1" '$1 == key && $2 == "=" { sub(/^[^=]*= */, ""); print; exit }' <<<"$2"
}

# Print [[DD:]HH:]MM:SS, or a number of seconds, as seconds.
seconds_of() {
    awk -F : '{ s = 0; for (i = 1; i <= NF; i++) s = s * (NF == 4 && i == 2 ? 24 : 60) + $i; print s }' <<<"$1"
}

# With CARAVAN_MPIEXEC, that command starts the launchers; else PBS itself does, with pbsdsh. Neither is sure to pass on
# the environment and the working directory: each node reads them from a file.
start_on_each_node() {
    local here=$CARAVAN_EXIT_FILE.environment code=0
    ( # without what PBS sets for each node; readable by the user alone, since tokens may be among it
        umask 077
        unset CUDA_VISIBLE_DEVICES HOSTNAME PBS_MOMPORT PBS_NODENUM PBS_TASKNUM PBS_VNODENUM TMPDIR
        export -p
        printf 'cd %q\n' "$PWD"
    ) >"$here"
    if [[ $nodes -eq 1 ]]; then
        trap : TERM # PBS sends it to all processes of the job: wait for the ranks to save
        CARAVAN_NODE_RANK=0 "$@" || code=$?
        trap - TERM
    elif [[ -n ${CARAVAN_MPIEXEC-} ]]; then
        start_with_mpiexec "$here" "$@" || code=$?
    else
        start_with_pbsdsh "$here" "$@" || code=$?
    fi
    rm -f "$here"
    return "$code"
}

start_with_mpiexec() {
    local here=$1 mpiexec
    shift
    read -ra mpiexec <<<"$CARAVAN_MPIEXEC"
    printf '%s\n' "${pbs_nodes[@]}" >"$here.nodes"
    local code=0
    "${mpiexec[@]}" -n "$nodes" --hostfile "$here.nodes" bash -c '
        rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PALS_RANKID-}}}
        . "$1"
        export CARAVAN_NODE_RANK=$rank
        exec "${@:2}"' step "$here" "$@" || code=$?
    rm -f "$here.nodes"
    return "$code"
}

# pbsdsh has a number per line of the node file. It is not sure to return the exit code of what it started: a file is.
start_with_pbsdsh() {
    local here=$1 rank line pids=()
    shift
    for rank in "${!pbs_nodes[@]}"; do
        for line in "${!pbs_lines[@]}"; do
            [[ ${pbs_lines[line]} != "${pbs_nodes[rank]}" ]] || break
        done
        pbsdsh -n "$line" -- /bin/bash -c '
            . "$1"
            export CARAVAN_NODE_RANK=$2
            "${@:3}" &
            trap "kill -TERM $!" TERM
            while kill -0 $! 2>/dev/null; do code=0; wait $! || code=$?; done
            echo "$code" >"$1.code$2"' step "$here" "$rank" "$@" &
        pids+=("$!")
    done
    trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM
    local failed=''
    while kill -0 "${pids[@]}" 2>/dev/null; do # while one of them runs
        sleep 1 &
        wait $! || true
        if [[ -z $failed ]] && ended_with_failure "$here"; then
            failed=yes # the others have lost a node
            kill -TERM "${pids[@]}" 2>/dev/null || true
        fi
    done
    trap - TERM
    local code=0
    ! ended_with_failure "$here" || code=1
    rm -f "$here".code*
    return "$code"
}

# Return whether one of `pids` ended, and its launcher did not end with 0.
ended_with_failure() {
    local rank
    for rank in "${!pids[@]}"; do
        if ! kill -0 "${pids[rank]}" 2>/dev/null; then
            [[ -s $1.code$rank && $(<"$1.code$rank") == 0 ]] || return 0
        fi
    done
    return 1
}

requeue_job() {
    local reason
    reason=$(qrerun "$job" 2>&1) && return
    echo "${reason#qrerun: }"
    return 1
}
