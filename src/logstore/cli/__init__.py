"""`logstore-dump`: look at stores, partitions and single files from a shell.

`logstore.cli.main.main` is the command. It uses only logstore's public names, and only
reads, except for `repair`, `rebuild-index`, `compact`, `snapshot` and
`doctor --write-test`.
"""
