"""Helpers for tests of more than one directory."""
