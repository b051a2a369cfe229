"""Pages of the main window. One folder a page: its view, its controller and its texts."""
