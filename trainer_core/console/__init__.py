"""Events as words on a terminal."""
