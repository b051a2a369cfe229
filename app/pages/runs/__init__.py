"""The page of all runs on disk: table, details of one, comparison of several."""
