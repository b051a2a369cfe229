"""Command `doctor`: checks this machine and suggests an action for each problem."""
