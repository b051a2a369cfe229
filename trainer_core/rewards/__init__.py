"""Rewards of generated answers. No torch, no Qt."""
