"""Appends to several partitions at once, and by other processes."""
