"""Runs on disk as the window knows them: listed, described, compared. No Qt."""
