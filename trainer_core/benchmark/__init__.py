"""`python -m trainer_core bench`: how fast this machine trains, beside what its hardware can do.

run.py measures, ceilings.py times matrix products and copies, tables.py formats the result for a terminal.
"""
