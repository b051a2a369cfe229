"""Readers that stream the rows of a file, one module per family of formats."""
