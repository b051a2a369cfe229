"""What the chosen data holds. Only `histogram.py` imports pyqtgraph, when there is something to plot."""
