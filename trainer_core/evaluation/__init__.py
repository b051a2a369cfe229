"""Evaluation of a trained model on data: command `evaluate`."""
