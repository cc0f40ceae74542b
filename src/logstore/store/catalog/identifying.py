"""Decides the ids of a log, from facts alone, when it is opened for writing.

`Catalog` says which id the topic has; the files in the partition's directory may
contradict it, or be the only ones that know. `PartitionWriters` collects the facts, and
does what `decide` says.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.checkpoint.topic_identity import TopicIdentity, log_id_of
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

__all__ = [
    "Identified",
    "IdentityFacts",
    "cuts_after",
    "decide",
    "log_id_in",
    "may_be_changed",
]


class IdentityFacts(NamedTuple):
    """Facts about the identity of a log.

    Attributes:
        key: its partition.
        topic_id: of the topic, under which the next append is written.
        is_new_id: no file had that id: it was made for this opening.
        has_settings: the topics file knows the topic.
        is_noted: the topics file says that a partition of it was written to, and in
            which format a topic without settings is continued.
        found: content of `.logstore-topic`; None: the file is missing or damaged.
        is_own: logstore wrote last.
        has_own_files: logstore has a file in the directory.
        recorded: the id of the log in its state file; None: the state does not count.
        earlier: the id of the log in a state file that does not count; None: there is
            no such file.
    """

    key: TopicPartition
    topic_id: str
    is_new_id: bool
    has_settings: bool
    is_noted: bool
    found: TopicIdentity | None
    is_own: bool
    has_own_files: bool
    recorded: str | None
    earlier: str | None


class Identified(NamedTuple):
    """Decision that follows from the facts.

    Attributes:
        log_id: of the log.
        is_identified: `.logstore-topic` and the topics file say so already; else the
            first append writes them.
        is_foreign: the directory is of an earlier topic of the name.
        is_renewed: positions of the topic that were committed before do not count,
            since its earlier id is unknown.
        is_cut: another program may have changed the log: a cut is recorded.
    """

    log_id: str
    is_identified: bool
    is_foreign: bool = False
    is_renewed: bool = False
    is_cut: bool = False


def decide(facts: IdentityFacts) -> Identified:
    """The ids of a log."""
    key, topic_id, identity = facts.key, facts.topic_id, facts.found
    is_of_topic = identity is not None and identity.is_of(topic_id, key.topic)
    recorded = facts.earlier if facts.recorded is None else facts.recorded
    log_id = log_id_in(key, topic_id, identity, recorded)
    is_known = facts.has_settings or not facts.is_new_id
    return Identified(
        log_id,
        is_identified=facts.is_noted
        and identity is not None
        and identity[:3] == (topic_id, *key)
        and identity.log_id == log_id,
        is_foreign=identity is not None and not is_of_topic,
        # If another program has written, there may never have been an id.
        is_renewed=facts.is_own and not is_known and facts.has_own_files,
        is_cut=may_be_changed(facts.recorded, facts.earlier, identity),
    )


def may_be_changed(
    counts: object | None, stale: object | None, identity: TopicIdentity | None
) -> bool:
    """Whether another program may have changed a log that logstore has written to.

    Args:
        counts: of its state, if that counts.
        stale: of its state, if that does not count.
        identity: what `.logstore-topic` says.
    """
    return counts is None and not (stale is None and identity is None)


def log_id_in(
    key: TopicPartition,
    topic_id: str,
    identity: TopicIdentity | None,
    recorded: str | None,
) -> str:
    """The id of a log, for its owner and for readers. An id that an earlier release has
    given it stays.

    Args:
        topic_id: of the topic.
        identity: what `.logstore-topic` says.
        recorded: what the state file says; "" or None: nothing.
    """
    if identity is not None and identity.topic_id == topic_id:
        recorded = recorded or identity.log_id
    elif identity is not None and identity.is_of(topic_id, key.topic):
        recorded = ""  # that of the log that this is a copy of
    return recorded or log_id_of(topic_id, key.partition)


def cuts_after(
    directory: Directory,
    state: PartitionState | None,
    start: int,
    end: int,
    now_ms: int,
) -> Cuts:
    """The cuts of a log that another program may have changed since its state was
    written: it is known to be unchanged only up to the last batch of the state, if that
    is still there.

    Args:
        state: does not count; None: there is no state file.
        start, end: the current offsets of the log.

    Raises:
        OSError: as raised by the system.
    """
    cuts, low = Cuts(), start
    if state is not None:
        cuts, tail = state.cuts, state.tail
        if tail is not None and tail.stands(directory, state.active["base_offset"]):
            low = min(tail.last_offset + 1, end)
    return cuts.after(low, now_ms, is_return=True)
