"""Groups of consumers: Kafka's records about them, and the groups of a broker."""
