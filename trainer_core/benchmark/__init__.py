"""`python -m trainer_core bench`: training speed of this machine, compared with the limits of its hardware.

run.py measures, ceilings.py times matrix products and copies, tables.py formats the result for a terminal.
"""
