"""The parts of the window: each puts together what one feature shows, asks of the trainer, and remembers."""
