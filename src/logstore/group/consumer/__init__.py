"""The consumer: reads, commits, and publishes."""
