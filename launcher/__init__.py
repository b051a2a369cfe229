"""How Traindeck sets itself up, keeps itself up to date, and starts: what train_gpu.py is made of.

An old interpreter must get as far as finding a better one: so the standard library only, no syntax that is newer than
Python 3.6 (hence the quoted annotations), and no newer library before `main` has handed over. Nothing here is imported
by the window or the trainer, nor imports them: they live in the environment that is made here.
"""
