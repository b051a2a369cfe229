"""What the window knows, without Qt and without torch: every file here can be tested on its own."""
