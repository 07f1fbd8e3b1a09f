#!/bin/bash

# Parameters
#SBATCH --account=me
#SBATCH --array=0-8%4
#SBATCH --cpus-per-task=6
#SBATCH --job-name=NAME
#SBATCH --mem=2560M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/grid/jobs/submitit/%A_%a_0_log.out
#SBATCH --partition=cpu
#SBATCH --qos=low
#SBATCH --requeue
#SBATCH --signal=USR2@60
#SBATCH --time=30

# setup
export PYTHONPATH=/harness${PYTHONPATH:+:$PYTHONPATH}

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /grid/jobs/submitit/%A_%a_%t_log.out --cpus-per-task=6 /venv/bin/python -u -m submitit.core._submit /grid/jobs/submitit
