"""Text to token ids: tokenizers that are given or trained, chat templates, and encoding.

No torch, no Qt.
"""
