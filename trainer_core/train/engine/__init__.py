"""How a run computes: the ways there are, each compared with the reference, measured, and chosen."""
