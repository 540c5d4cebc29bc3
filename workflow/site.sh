# Read the environment file of the site, once per job: CARAVAN_SITE, or the environment.sh of the scheduler's profile if
# there is such a profile. Sourced by the shell of each job (scripts/commands.py), and by launch, which may be
# started without one, for example for tools.doctor: both have the same modules and network.
#
# CARAVAN            in: the checkout
# CARAVAN_CONTAINER  out, with pyxis: the srun that starts `python` in its container
# CARAVAN_SITE_READ  out: the job that has read the file, and the file; launchers on other nodes inherit what it set

caravan_job=''
for caravan_name in LSB_JOBID:lsf PBS_JOBID:pbs SLURM_JOB_ID:slurm FLUX_JOB_ID:flux; do # a Flux may run in another's job
    caravan_variable=${caravan_name%:*}
    if [[ -n ${!caravan_variable-} ]]; then
        caravan_job=${caravan_name#*:}:${!caravan_variable}
    fi
done
caravan_profile=$CARAVAN/profiles/${caravan_job%%:*}
caravan_file=${CARAVAN_SITE:-$caravan_profile/environment.sh}
if [[ -n $caravan_job && ${CARAVAN_SITE_READ-} != "$caravan_job $caravan_file" &&
    (-n ${CARAVAN_SITE-} || -d $caravan_profile) ]]; then
    if [[ ! -f $caravan_file || ! -r $caravan_file ]]; then
        echo "launch: CARAVAN_SITE must be a file that can be read on $HOSTNAME, got $caravan_file" >&2
        exit 2
    fi
    export CARAVAN_SITE_READ="$caravan_job $caravan_file"
    set +u # modules of some sites fail under it
    . "$caravan_file"
    set -u
fi

# pyxis is an option of srun. `launch` passes it to the srun that starts launch itself on each node, in the container. Where
# a job starts Python alone, another srun does: --overlap, since the job's own step has all its resources.
if [[ $caravan_job == slurm:* && -z ${CARAVAN_CONTAINER-}${CARAVAN_NODE_RANK-} && ${CARAVAN_SRUN-} == *--container-image* ]]; then
    CARAVAN_CONTAINER="srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=$(nproc) $CARAVAN_SRUN"
fi
