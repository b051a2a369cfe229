"""The queue of runs: a page, its table, and the dialog of a sweep."""
