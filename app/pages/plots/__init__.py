"""Live plots. Only `canvas.py` imports pyqtgraph, and it is imported after the first paint."""
