"""From files to batches: sources -> documents -> tokenizer -> token cache -> batches.

Only `batches.py` imports torch; the window imports the rest for its previews.
"""
