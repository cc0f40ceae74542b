"""Exceptions: their family, their facts as attributes, and what their messages say."""

from __future__ import annotations

import errno
import pickle

import pytest

import logstore
from logstore import errors

FAMILY = {
    "ConfigError": (ValueError,),
    "TopicExistsError": (ValueError,),
    "StoreNotFoundError": (LookupError,),
    "TopicNotFoundError": (LookupError,),
    "PartitionNotFoundError": (LookupError,),
    "InvalidRecordError": (ValueError,),
    "GroupNotEmptyError": (logstore.GroupError,),
    "GroupNotFoundError": (LookupError, logstore.GroupError),
    "StoreLockedError": (),
    "PublicationUnknownError": (),
    "StoreClosedError": (),
    "ReadOnlyError": (),
    "GroupError": (),
    "CommitFailedError": (logstore.GroupError,),
    "FencedError": (logstore.GroupError,),
    "InconsistentAssignorError": (logstore.GroupError,),
    "MemberIdInUseError": (logstore.GroupError,),
    "NoOffsetForPartitionError": (logstore.GroupError,),
    "OffsetMetadataTooLargeError": (ValueError, logstore.GroupError),
    "ReentrantCallError": (),
    "ForkedError": (),
    "EventLoopError": (RuntimeError,),
    "RecordNotFoundError": (LookupError,),
    "OffsetOutOfRangeError": (IndexError,),
    "ProducerError": (),
    "OutOfOrderSequenceError": (),
    "DuplicateSequenceError": (),
    "InvalidProducerEpochError": (),
    "ProducerFencedError": (),
    "OffsetConflictError": (),
    "PublicationConflictError": (),
    "PublicationTimeoutError": (TimeoutError,),
    "RecordTooLargeError": (ValueError,),
    "UnsupportedError": (),
    "StorageError": (OSError,),
    "DiskFullError": (OSError, errors.StorageError),
    "SyncFailedError": (OSError, errors.StorageError),
    "CorruptionError": (),
    "CorruptRecordError": (errors.CorruptionError,),
    "CorruptIndexError": (errors.CorruptionError,),
    "CorruptCheckpointError": (errors.CorruptionError,),
}

EXAMPLES = {
    "ConfigError": logstore.ConfigError("text", name="segment_ms", value=0),
    "TopicExistsError": logstore.TopicExistsError("text", topic="a"),
    "StoreNotFoundError": logstore.StoreNotFoundError("text", path="/p"),
    "TopicNotFoundError": logstore.TopicNotFoundError("text", topic="a"),
    "PartitionNotFoundError": logstore.PartitionNotFoundError(
        "text", topic="a", partition=3
    ),
    "InvalidRecordError": logstore.InvalidRecordError("text", index=3),
    "GroupNotEmptyError": logstore.GroupNotEmptyError("text", group="g", pids=(7,)),
    "GroupNotFoundError": logstore.GroupNotFoundError("text", group="g", path="/p"),
    "StoreLockedError": logstore.StoreLockedError(
        "text", path="/p", holder_pid=7, opened_at="app.py:5"
    ),
    "GroupError": logstore.GroupError("text", group="g"),
    "CommitFailedError": logstore.CommitFailedError("text", group="g"),
    "FencedError": logstore.FencedError("text", group="g"),
    "InconsistentAssignorError": logstore.InconsistentAssignorError(
        "text", group="g", expected="range"
    ),
    "MemberIdInUseError": logstore.MemberIdInUseError(
        "text", group="g", instance="i", holder_pid=7
    ),
    "NoOffsetForPartitionError": logstore.NoOffsetForPartitionError(
        "text", group="g", partition="a-0"
    ),
    "OffsetMetadataTooLargeError": logstore.OffsetMetadataTooLargeError(
        "text", group="g", size=5, limit=4
    ),
    "RecordNotFoundError": logstore.RecordNotFoundError(5, partition="a-0"),
    "OffsetOutOfRangeError": logstore.OffsetOutOfRangeError(9, 1, 5, partition="a-0"),
    "OffsetConflictError": logstore.OffsetConflictError(9, 5, partition="a-0"),
    "PublicationConflictError": logstore.PublicationConflictError("a", 4, 5),
    "PublicationTimeoutError": logstore.PublicationTimeoutError("a", 4, timeout_ms=5),
    "RecordTooLargeError": logstore.RecordTooLargeError(
        "text", limit_name="max_message_bytes", limit=10, size=11
    ),
    "UnsupportedError": logstore.UnsupportedError(
        "text", path="/p", position=1, offset=2
    ),
    "StorageError": logstore.StorageError("text", errno=5, path="/p", action="open"),
    "DiskFullError": logstore.DiskFullError("text", errno=28, path="/p"),
    "SyncFailedError": logstore.SyncFailedError("text", errno=5, path="/p"),
    "CorruptRecordError": logstore.CorruptRecordError(
        "checksum differs", path="/p", position=17, offset=4, next_offset=6
    ),
    "CorruptIndexError": logstore.CorruptIndexError("text", path="/p", position=8),
    "CorruptCheckpointError": logstore.CorruptCheckpointError("text", path="/p"),
}


@pytest.mark.parametrize("name", FAMILY)
def test_error_belongs_to_its_family(name: str) -> None:
    """Each is a LogStoreError and, where that helps, one of Python's own."""
    error = getattr(logstore, name)
    assert issubclass(error, logstore.LogStoreError)
    assert name in logstore.__all__
    for base in FAMILY[name]:
        assert issubclass(error, base)
    assert error.__doc__


def test_every_public_error_is_in_the_family() -> None:
    """No exception without a place in the tree."""
    public = {n for n in logstore.__all__ if n.endswith("Error")} - {"LogStoreError"}
    assert public == set(FAMILY)


@pytest.mark.parametrize("name", EXAMPLES)
def test_error_survives_pickling(name: str) -> None:
    """Errors cross process boundaries (multiprocessing, Spark) with their facts."""
    error = EXAMPLES[name]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_out_of_range_says_what_can_be_read() -> None:
    """Requested, start and end, and the partition."""
    error = EXAMPLES["OffsetOutOfRangeError"]
    for part in ("9", "[1, 5]", "a-0", "earliest"):
        assert part in str(error)


def test_corrupt_record_says_where_and_what_to_do() -> None:
    """Reason, path, position, offset, and the next step."""
    error = EXAMPLES["CorruptRecordError"]
    for part in ("checksum differs", "/p", "17", "4", "logstore-dump verify"):
        assert part in str(error)
    assert error.next_offset == 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_storage_error_of_a_full_disk_is_disk_full(code: int) -> None:
    """Space, quota and file size limit are one thing to the caller."""
    error = errors.storage_error(OSError(code, "x"), "append to", "/p", "Nothing more.")
    assert type(error) is logstore.DiskFullError
    assert (error.errno, error.filename, error.action) == (code, "/p", "append to")
    assert str(error).endswith("Nothing more.")


def test_storage_error_keeps_what_the_system_said() -> None:
    """errno, path, action, and the system's words."""
    error = errors.storage_error(OSError(errno.EIO, "x"), "sync", "/p")
    assert type(error) is logstore.StorageError
    assert str(error) == "cannot sync /p: Input/output error"


def test_storage_errors_names_what_the_system_refused() -> None:
    """The cause is kept; logstore's own errors and others pass unchanged."""
    cause = OSError(errno.ENOSPC, "x")
    with (
        pytest.raises(
            errors.DiskFullError, match=r"cannot sync /p: .*Nothing"
        ) as found,
        errors.storage_errors("sync", "/p", "Nothing was written."),
    ):
        raise cause
    assert found.value.__cause__ is cause
    own = errors.StorageError("x", errno=errno.EIO, path="/q", action="read")
    for error in (own, ValueError("x"), KeyboardInterrupt()):
        with (
            pytest.raises(type(error)) as same,
            errors.storage_errors("sync", "/p"),
        ):
            raise error
        assert same.value is error
    with errors.storage_errors("sync", "/p"):
        pass


@pytest.mark.parametrize("name", EXAMPLES)
def test_error_told_elsewhere_keeps_its_kind_and_facts(name: str) -> None:
    """Of a task in the background, or of a call that was partly done."""
    error = EXAMPLES[name]
    renamed = errors.renamed_error(error, "in the background")
    partly = errors.partly_done(error, ((1, range(3, 5)), (2, range(0))))
    assert str(renamed) == f"in the background: {error}"
    assert str(partly) == (
        f"{error}. Appended before that, and there: offsets 3 to 4 of partition 1"
    )
    assert partly.appended == ((1, range(3, 5)), (2, range(0)))
    assert (error.appended, renamed.appended) == ((), ())
    for made in (renamed, partly, pickle.loads(pickle.dumps(partly))):
        assert type(made) is type(error)
        facts = {k: v for k, v in vars(made).items() if k != "appended"}
        assert facts == vars(error)
        assert getattr(made, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyboardInterrupt(), "KeyboardInterrupt"), (OSError(5, "bad"), "[Errno 5] bad")],
)
def test_text_of_an_error_is_never_empty(error: BaseException, text: str) -> None:
    """A message that names its cause has one also where a signal was that."""
    assert errors.error_text(error) == text
