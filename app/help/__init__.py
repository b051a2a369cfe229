"""Windows opened from the Help menu."""
