"""Export of checkpoints to other formats."""
