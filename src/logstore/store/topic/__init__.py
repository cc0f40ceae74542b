"""Topics as users see them, and what changes them."""
