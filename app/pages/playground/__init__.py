"""The page “Try it”: let a checkpoint write, or two side by side."""
