"""Advice on the settings and the machine of a run, derived from its events.

Each rule is a class in rules_*.py; its texts are below `message.advice` in `trainer_core/texts`. No torch, no Qt, no
clock and no files: the same events always give the same advice.
"""
