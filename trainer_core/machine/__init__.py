"""The machine that trains: what it has, what it does, and what it must not do meanwhile."""
