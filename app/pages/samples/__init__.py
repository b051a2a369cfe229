"""Samples page: text that the model wrote during training."""
