"""Runs on disk: folders, checkpoints, locks."""
