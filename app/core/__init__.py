"""Run state, queue, history, settings and metrics. No Qt widgets."""
