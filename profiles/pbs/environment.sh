# The environment of jobs on this cluster. Every PBS job of the workflow reads this file first, on its node; nothing in
# it changes a result. SITE: remove the `#` of what your cluster needs. A profile in another directory may have its own
# file: `export CARAVAN_SITE=/path/to/environment.sh` before you call snakemake.

# --- Modules
#module load cuda/12.8

# --- Network: the interface between the processes of several nodes. A name that begins with ^ excludes it.
#export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0

# --- InfiniBand: the adapters that NCCL uses
#export NCCL_IB_HCA=mlx5

# --- Start one launcher per node of a training with the site's mpiexec, instead of PBS' own pbsdsh. It is called with
# -n NODES --hostfile FILE. Cray's PALS and MPICH, Open MPI:
#export CARAVAN_MPIEXEC="mpiexec --ppn 1 --cpu-bind none"
#export CARAVAN_MPIEXEC="mpiexec --map-by ppr:1:node --bind-to none"

# --- A proxy, for jobs that read sources from the internet
#export HTTPS_PROXY=http://proxy:3128 NO_PROXY=localhost,127.0.0.1 # Polaris: http://proxy.alcf.anl.gov:3128

# --- Compute nodes without internet: no request to the Hugging Face Hub; its files must be in the cache
#export HF_HOME=/shared/huggingface HF_HUB_OFFLINE=1

# --- If collectives hang or fail: NCCL's messages in the job's log, and the number of collectives that the flight
# recorder keeps (default 2000, 0 for none; a hang writes them into hang/ in the run directory)
#export NCCL_DEBUG=INFO
#export TORCH_FR_BUFFER_SIZE=20000

# --- A container: the words before `python` in every stage. It must have what requirements.txt lists, and must see the
# working directory, this checkout and /tmp. It needs no command of PBS.
#export CARAVAN_CONTAINER="apptainer exec --nv --bind /shared /shared/caravan.sif"
