"""Training: one step that reads from top to bottom, and what surrounds it."""
