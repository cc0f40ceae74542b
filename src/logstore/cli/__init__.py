"""`logstore-dump`: look at stores, partitions and single files from a shell.

`logstore.cli.main.main` is the command. It uses logstore's public names alone, and
reads only, but for `rebuild-index`.
"""
