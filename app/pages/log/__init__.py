"""Log page."""
