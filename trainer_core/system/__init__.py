"""Hardware, memory, files and processes of this machine."""
