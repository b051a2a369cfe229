"""Runs on disk: list, notes, rows of the runs table, differences of configurations. No Qt."""
