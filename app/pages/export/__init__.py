"""Export page: a checkpoint for other programs, and its verification."""
