"""Partitions and topics as data frames: Arrow streams and a dataset with pushdown.

`log` needs no pyarrow; the other modules do, and are imported when they are used
(`logstore.record.extras.frames_module`).
"""
