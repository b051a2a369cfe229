"""The peers: what a user of another library would write for the same work, each a command of its own."""
