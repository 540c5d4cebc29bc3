# The environment of jobs on this cluster. Every Slurm job of the workflow reads this file first, on its node; nothing in
# it changes a result. SITE: remove the `#` of what your cluster needs. A profile in another directory may have its own
# file: `export CARAVAN_SITE=/path/to/environment.sh` before you call snakemake.

# --- Modules
#module load cuda/12.8

# --- Network: the interface between the processes of several nodes. A name that begins with ^ excludes it.
#export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0

# --- InfiniBand: the adapters that NCCL uses
#export NCCL_IB_HCA=mlx5

# --- AWS EFA (p4d, p4de, p5): NCCL uses it through the aws-ofi-nccl plugin, which must be on LD_LIBRARY_PATH
#export FI_PROVIDER=efa
#export FI_EFA_USE_HUGE_PAGE=0          # otherwise forked processes may run out of memory
#export FI_EFA_SET_CUDA_SYNC_MEMOPS=0   # faster with FSDP
#export NCCL_SOCKET_IFNAME=^docker,lo,veth
#export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:${LD_LIBRARY_PATH-}

# --- A proxy, for jobs that read sources from the internet
#export HTTPS_PROXY=http://proxy:3128 NO_PROXY=localhost,127.0.0.1

# --- Compute nodes without internet: no request to the Hugging Face Hub; its files must be in the cache
#export HF_HOME=/shared/huggingface HF_HUB_OFFLINE=1

# --- If collectives hang or fail: NCCL's messages in the job's log, and the number of collectives that the flight
# recorder keeps (default 2000, 0 for none; a hang writes them into hang/ in the run directory)
#export NCCL_DEBUG=INFO
#export TORCH_FR_BUFFER_SIZE=20000

# --- A container, for every job: one of these lines. The first is the words before `python`, the second are pyxis' options
# of srun. It must have what requirements.txt lists (Containerfile, caravan.def), and must see the working directory, this
# checkout and /tmp. It needs no command of Slurm. See docs/cluster.md.
#export CARAVAN_CONTAINER="apptainer exec --nv --bind /shared /shared/caravan.sif"
#export CARAVAN_SRUN="--container-image=/shared/caravan.sqsh --container-mounts=/shared,/tmp"
