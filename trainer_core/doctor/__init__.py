"""`doctor`: what this machine has, what is missing for training, and what to do about it."""

from trainer_core.doctor.examining import examine, render
from trainer_core.doctor.finding import Finding

__all__ = ["Finding", "examine", "render"]
