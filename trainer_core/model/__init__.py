"""The model: one decoder, and its names in the Hugging Face world. Knows nothing of training."""
