"""Copies of a store: snapshots, and the first opening of a copy."""
