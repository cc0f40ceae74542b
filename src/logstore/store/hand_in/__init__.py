"""Hand-in: processes that have not the lock of a store have its owner write."""
