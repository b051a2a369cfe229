"""What a run measured, as series to plot: taken in, kept, thinned, smoothed. No Qt."""
