"""`export`: records into files of other kinds.

`command` has the subcommand, `targets` the files and their compression, `rows` turns
records into JSON lines and CSV, `columns` into parquet and Arrow files.
"""
