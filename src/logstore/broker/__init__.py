"""The consumer groups of a Kafka broker, from its directories, and its records."""
