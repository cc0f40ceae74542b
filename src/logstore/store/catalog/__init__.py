"""The topics of a store, their settings and ids."""
