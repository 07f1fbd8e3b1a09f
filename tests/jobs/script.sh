#!/bin/bash
#SBATCH --job-name=NAME
#SBATCH --array=0-8%4
#SBATCH --partition=cpu
#SBATCH --account=me
#SBATCH --qos=low
#SBATCH --mem=2560M
#SBATCH --time=30
#SBATCH --signal=USR2@60
#SBATCH --output=/grid/jobs/NAME-%a.out
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=6 --open-mode=append --requeue
export PYTHONPATH=/harness${PYTHONPATH:+:$PYTHONPATH}
cd '/work folder'
cell=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" /grid/jobs/NAME.cells)
srun --cpus-per-task=6 /venv/bin/python -m harness.jobs.cell_job /grid/jobs 50.0 20 "$cell"
