"""Data reports: counts, lengths, duplicates and first samples, of sampled or of prepared data."""
