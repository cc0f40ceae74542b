"""One member of a group: joins, and takes its partitions."""
