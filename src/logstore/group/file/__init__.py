"""The two files of a group: its log, and its locks."""
