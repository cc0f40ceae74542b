"""The text of Kafka's own tool, kafka-dump-log, in that of its releases."""
