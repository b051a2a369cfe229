"""The Chat page: chats, continued texts, and samples of training."""
