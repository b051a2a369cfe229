"""Fault injection for longer than tests have time for: `python -m bench.faults NAME`.

Each command prints a table and writes bench/results/faults-NAME.json; docs/reliability.md records what was found.
tests/faults runs the same code for a shorter time.
"""
