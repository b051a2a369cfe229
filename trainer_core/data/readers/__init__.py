"""One module a family of formats: how the rows of one file are streamed, never held whole.

No torch, no Qt.
"""
