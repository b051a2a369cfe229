"""Welcome page, shown before the first run."""
