"""`logstore-dump`: look at stores, partitions and single files from a shell.

`logstore.cli.main.main` is the command. It uses logstore's public names alone, and only
reads, but for `repair`, `rebuild-index` and `doctor --write-test`.
"""
