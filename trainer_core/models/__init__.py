"""The decoder and its Hugging Face configuration. Knows nothing of training."""
