"""Groups of consumers: their members, and what they have committed."""
