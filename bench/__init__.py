"""Benchmarks against peers: `python -m bench.NAME`. docs/performance.md lists the commands and their results."""
