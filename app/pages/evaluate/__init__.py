"""Evaluate page: scores of a checkpoint and of its base model, and their answers."""
