"""How a run computes, and how well it uses the machine."""
