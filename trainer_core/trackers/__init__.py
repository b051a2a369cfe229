"""Experiment trackers, fed by the events of a run."""
