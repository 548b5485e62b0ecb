#!/bin/bash
#SBATCH --array=0-15
#SBATCH --requeue
#SBATCH --gres=gpu:1
# Slurm sends SIGTERM before it kills a task, so that what is computed gets written:
#SBATCH --signal=TERM@60
exec srun python program.py "$1"
