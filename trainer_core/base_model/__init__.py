"""Base models: where they come from (`source`, `hub`), and how their weights are read (`weight_files`, `weights`)."""
