"""`python -m trainer_core bench`: what this machine can do, and how much of it training takes.

run.py        the command: what is measured, in which order, within a time
ceilings.py   matrix products and copies alone
recipes.py    real training runs beside each other: untuned, the preset, tuned
data.py       a text that is there on every machine, with a vocabulary of any size
result.py     one document of it all; words.py: a terminal's tables; svg.py, picture.py: a picture
"""
