"""Hand-in: processes without the lock of a store let its owner write for them."""
