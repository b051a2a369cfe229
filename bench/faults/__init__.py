"""Fault injection: what tests/faults runs for a short time, for longer. docs/reliability.md has the results."""
