"""Peers: what a user of another library would write for the same task, each a command."""
