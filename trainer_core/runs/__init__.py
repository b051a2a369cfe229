"""A run on disk, seen from outside: its folder, its checkpoints, its owner."""
