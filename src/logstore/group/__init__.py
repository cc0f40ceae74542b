"""Groups of consumers: their members, and their committed offsets."""
