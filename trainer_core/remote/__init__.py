"""Training on another machine over `ssh`.

Here, `command` runs a remote run as a process with the events and commands of `train`; there, `keeper` keeps the
trainer running without a connection. No torch, no Qt.
"""
