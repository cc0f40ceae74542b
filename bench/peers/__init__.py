"""The rivals, each in its best form for the work of a case."""
