"""The C core; only `logstore._binding` imports it."""
