"""Setup, updates and start of Traindeck: the implementation of train_gpu.py.

An old Python must be able to find a newer one. Therefore: standard library only, the syntax of Python 3.6 (hence quoted
annotations), and no newer library functions before `main` has switched. The window and the trainer neither import this
package nor are imported by it.
"""
