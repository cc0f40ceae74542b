"""Topics as users see them, and changes of topics."""
