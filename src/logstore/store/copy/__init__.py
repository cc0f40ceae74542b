"""Copies of a store: snapshots, and what the first opening of a copy does."""
