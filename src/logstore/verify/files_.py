def _kind_of_file(name: str) -> str:
    """A suffix of layout's, STATE, CHECKPOINT, or "" for what is not known."""
    parsed = parse_segment_file(name)
    if parsed is not None:
        return parsed.suffix
    if name in (layout.OWNER, layout.TOPICS, layout.PARTITION_STATE):
        return STATE
    if name in (*_OFFSET_CHECKPOINTS, layout.LEADER_EPOCHS, _PARTITION_METADATA):
        return CHECKPOINT
    for suffix in (LOG, SNAPSHOT, TXN_INDEX):
        if name.endswith(suffix):
            return suffix
    return ""
