"""What data holds: counts, lengths, duplicates and first samples, of a part of it or of all.

No torch, no Qt.
"""
