"""What the Help menu opens."""
