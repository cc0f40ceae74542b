"""The partitions of a store, as its users and other rooms see them."""
