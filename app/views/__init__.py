"""The window's widgets. Signals go up, `display(...)` comes down; they know nothing of processes or files."""
