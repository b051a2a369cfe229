"""Benchmarks against peers, run by hand: `python -m bench.NAME`. How, and what came out: docs/performance.md."""
