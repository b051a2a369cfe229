"""The Playground page: text from one checkpoint, or from two side by side."""
