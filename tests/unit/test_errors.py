"""Exceptions: their hierarchy, their facts as attributes, and their messages."""

from __future__ import annotations

import copy
import errno
import importlib
import inspect
import pickle
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

import logstore
from logstore import errors
from logstore.errors import LogStoreError
from logstore.group import errors as group_errors

# The bases of each class in the order of lookup, and the parameters of its constructor.
KINDS = {
    "LogStoreError": ("", "*args"),
    "ConfigError": ("LogStoreError ValueError", "message, *, name='', value=None"),
    "TopicExistsError": ("LogStoreError ValueError", "message, *, topic"),
    "StoreNotFoundError": ("LogStoreError LookupError", "message, *, path"),
    "TopicNotFoundError": ("LogStoreError LookupError", "message, *, topic"),
    "PartitionNotFoundError": (
        "TopicNotFoundError LogStoreError LookupError",
        "message, *, topic, partition",
    ),
    "StoreLockedError": (
        "LogStoreError",
        "message, *, path, holder_pid=None, opened_at=None, holder=None",
    ),
    "StoreClosedError": ("LogStoreError", "*args"),
    "ReadOnlyError": ("LogStoreError", "*args"),
    "ForkedError": ("LogStoreError", "*args"),
    "EventLoopError": ("LogStoreError RuntimeError", "*args"),
    "ReentrantCallError": ("LogStoreError", "*args"),
    "OffsetOutOfRangeError": (
        "LogStoreError IndexError LookupError",
        "requested, start, end, *, partition='', cut_to=None",
    ),
    "RecordNotFoundError": ("LogStoreError LookupError", "offset, *, partition"),
    "OffsetConflictError": ("LogStoreError", "expected, actual, *, partition"),
    "ProducerError": ("LogStoreError", "message, *, producer_id, partition"),
    "OutOfOrderSequenceError": (
        "ProducerError LogStoreError",
        "message, *, producer_id, partition, sequence, expected",
    ),
    "DuplicateSequenceError": (
        "ProducerError LogStoreError",
        "message, *, producer_id, partition",
    ),
    "InvalidProducerEpochError": (
        "ProducerError LogStoreError",
        "message, *, producer_id, partition, epoch, expected",
    ),
    "ProducerFencedError": (
        "ProducerError LogStoreError",
        "message, *, producer_id, partition, name, epoch, expected",
    ),
    "PublicationConflictError": ("LogStoreError", "identity, sequence, last"),
    "PublicationUnknownError": ("LogStoreError", "identity, sequence"),
    "PublicationTimeoutError": (
        "LogStoreError TimeoutError OSError",
        "identity, sequence, *, timeout_ms, outcome='unknown', holder=None",
    ),
    "RecordTooLargeError": (
        "LogStoreError ValueError",
        "message, *, limit_name, limit, size=None",
    ),
    "InvalidRecordError": ("LogStoreError ValueError", "message, *, index"),
    "UnsupportedError": (
        "LogStoreError",
        "message, *, path=None, position=None, offset=None",
    ),
    "StorageError": (
        "LogStoreError OSError",
        "message, *, errno=None, path=None, action=''",
    ),
    "DiskFullError": (
        "StorageError LogStoreError OSError",
        "message, *, errno=None, path=None, action=''",
    ),
    "SyncFailedError": (
        "StorageError LogStoreError OSError",
        "message, *, errno=None, path=None, action=''",
    ),
    "CorruptionError": ("LogStoreError", "message, *, path, position=None, reason=''"),
    "CorruptRecordError": (
        "CorruptionError LogStoreError",
        "reason, *, path, position, offset, next_offset=None",
    ),
    "CorruptIndexError": (
        "CorruptionError LogStoreError",
        "message, *, path, position=None, reason=''",
    ),
    "CorruptCheckpointError": (
        "CorruptionError LogStoreError",
        "message, *, path, position=None, reason=''",
    ),
    "GroupError": ("LogStoreError", "message, *, group"),
    "CommitFailedError": ("GroupError LogStoreError", "message, *, group"),
    "FencedError": ("GroupError LogStoreError", "message, *, group"),
    "GroupNotEmptyError": ("GroupError LogStoreError", "message, *, group, pids"),
    "GroupNotFoundError": (
        "GroupError LogStoreError LookupError",
        "message, *, group, path",
    ),
    "InconsistentAssignorError": (
        "GroupError LogStoreError",
        "message, *, group, expected",
    ),
    "MemberIdInUseError": (
        "GroupError LogStoreError",
        "message, *, group, instance, holder_pid",
    ),
    "NoOffsetForPartitionError": (
        "GroupError LogStoreError",
        "message, *, group, partition",
    ),
    "OffsetMetadataTooLargeError": (
        "GroupError LogStoreError ValueError",
        "message, *, group, size, limit",
    ),
}

# A value of each parameter, for the examples.
VALUES: dict[str, Any] = {
    "action": "open",
    "actual": 5,
    "cut_to": 3,
    "end": 5,
    "epoch": 2,
    "errno": 28,
    "expected": 9,
    "group": "g",
    "holder": errors.Holder(7, "python", "here", 5, "owner"),
    "holder_pid": 7,
    "identity": "a",
    "index": 3,
    "instance": "i",
    "last": 6,
    "limit": 10,
    "limit_name": "max_message_bytes",
    "message": "text",
    "name": "segment_ms",
    "next_offset": 6,
    "offset": 4,
    "opened_at": "app.py:5",
    "outcome": "unknown",
    "partition": "a-0",
    "path": "/p",
    "pids": (7,),
    "position": 17,
    "producer_id": 8,
    "reason": "checksum differs",
    "requested": 9,
    "sequence": 4,
    "size": 11,
    "start": 1,
    "timeout_ms": 50,
    "topic": "a",
    "value": 0,
}

# The text of an error that builds its text itself: with all arguments, and with the
# fewest.
TEXTS = {
    "OffsetOutOfRangeError": (
        "the log of a-0 was truncated to offset 3 below the position 9 of a reader: "
        "records that it read from 3 on no longer exist. The log is [1, 5) now; "
        "continue from 3",
        "offset 9 is outside [1, 5]: the earliest that can be read is 1, the next to "
        "be written 5",
    ),
    "RecordNotFoundError": (
        "a-0 has no record at offset 4: compaction removed it, or it is not "
        "visible to readers. read(start=4) begins at the next one",
    ),
    "OffsetConflictError": (
        "expected offset 9 is not the next of a-0, which is 5; nothing was written",
    ),
    "PublicationConflictError": (
        "'a' has published sequence 6; 4 comes before it. Its state was reset, "
        "or two publishers use the same identity. Nothing was published",
    ),
    "PublicationUnknownError": (
        "'a' has published sequence 4 to the original of this store, and the "
        "copy may lack its records. Nothing was published. Find out which "
        "records are there, then continue with a higher sequence",
    ),
    "PublicationTimeoutError": (
        "whether 'a' publishes sequence 4 is unknown: the process that has the "
        "store began to publish it, but did not answer within 50 ms. Ask "
        "Store.published, or hand it in again, which publishes it only once",
    ),
    "CorruptRecordError": (
        "checksum differs: /p at byte 17. Records 4 to 5 cannot be read here, "
        "reading can continue at offset 6. Keep a copy of the file, then run "
        "`logstore-dump verify` on its directory.",
        "checksum differs: /p at byte 17. Records from offset 4 on cannot be read "
        "here. Keep a copy of the file, then run `logstore-dump verify` on its "
        "directory.",
    ),
}


def kind_of(name: str) -> Callable[..., LogStoreError]:
    found: Callable[..., LogStoreError] = getattr(errors, name)
    return found


def signature_of(kind: Callable[..., LogStoreError]) -> str:
    """The parameters of a constructor, without types."""
    try:
        found = inspect.signature(kind).parameters.values()
    except ValueError:  # the signature of a built-in class
        return "*args"
    plain = [one.replace(annotation=one.empty) for one in found]
    return str(inspect.Signature(plain))[1:-1]


def parameters(name: str) -> list[inspect.Parameter]:
    """The parameters of a constructor, except `*args`."""
    if signature_of(kind_of(name)) == "*args":
        return []
    return list(inspect.signature(kind_of(name)).parameters.values())


def made(name: str, *, least: bool = False) -> LogStoreError:
    """An error with all arguments, or only with the required ones."""
    args, facts = [], {}
    for one in parameters(name):
        if one.kind is not one.KEYWORD_ONLY:
            args.append(VALUES[one.name])
        elif not least or one.default is one.empty:
            facts[one.name] = VALUES[one.name]
    return kind_of(name)(*(args if parameters(name) else ["text"]), **facts)


EXAMPLES = {name: made(name) for name in KINDS}


def state(error: BaseException) -> dict[str, Any]:
    """The whole state of an error."""
    slots = {name: getattr(error, name, None) for name in ("errno", "filename")}
    return {"args": error.args, "text": str(error), **slots, **vars(error)}


def test_every_class_is_in_the_table() -> None:
    """Every exception has a place in the tree, and is in the public module."""
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, LogStoreError)
    }
    assert found == set(KINDS) == set(errors.__all__)
    # The dozen that users catch.
    assert len({n for n in logstore.__all__ if n.endswith("Error")}) == 12


def test_pickles_of_group_errors_keep_their_module() -> None:
    """They name a module of version 0.1."""
    for name in group_errors.__all__:
        old = f"clogstore.group.errors\n{name}\n.".encode()
        assert pickle.loads(old) is getattr(errors, name)


@pytest.mark.parametrize("name", KINDS)
def test_error_belongs_to_its_family(name: str) -> None:
    """Each is a LogStoreError and, if that helps, a built-in error."""
    kind = getattr(errors, name)
    bases = [base.__name__ for base in kind.__mro__[1:]]
    assert bases == [*KINDS[name][0].split(), "Exception", "BaseException", "object"]
    assert kind.__doc__


@pytest.mark.parametrize("name", KINDS)
def test_constructor_has_the_parameters_of_the_table(name: str) -> None:
    """A position or a name, a default or none."""
    assert signature_of(kind_of(name)) == KINDS[name][1]


@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_error_has_its_facts_and_its_text(name: str, *, least: bool) -> None:
    """A fact is an attribute; the text is the only argument, and `repr` shows it."""
    error = made(name, least=least)
    texts = TEXTS.get(name, ("text",))
    assert str(error) == texts[-1 if least else 0]
    assert error.args == (str(error),)
    assert repr(error) == f"{name}({str(error)!r})"
    assert error.appended == ()
    expected = {
        one.name: one.default
        if least and one.default is not one.empty
        else VALUES[one.name]
        for one in parameters(name)
        if one.name != "message"
    }
    if isinstance(error, errors.StorageError):
        assert error.errno == expected.pop("errno")
        assert error.filename == expected.pop("path")
    if name != "CorruptRecordError" and "reason" in expected:
        expected["reason"] = expected["reason"] or "text"
    assert vars(error) == expected
    assert not hasattr(error, "message")


@pytest.mark.parametrize("name", KINDS)
def test_constructor_refuses_wrong_facts(name: str) -> None:
    """An unknown one, or a missing one without a default."""
    kind = kind_of(name)
    args, facts = [], {}
    for one in parameters(name):
        if one.kind is one.KEYWORD_ONLY:
            facts[one.name] = VALUES[one.name]
        else:
            args.append(VALUES[one.name])
    with pytest.raises(TypeError, match=r"other|keyword arg"):
        kind(*args, **facts, other=1)
    for one in parameters(name):
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty:
            with pytest.raises(TypeError, match=one.name):
                kind(*args, **{k: v for k, v in facts.items() if k != one.name})
    if args:
        with pytest.raises(TypeError):
            kind(*args[:-1], **facts)
        with pytest.raises(TypeError):
            kind(*args, "one more", **facts)


@pytest.mark.parametrize("name", [n for n, k in KINDS.items() if "message" in k[1]])
def test_message_may_be_given_by_its_name(name: str) -> None:
    """It is the text then, too."""
    facts = {one.name: VALUES[one.name] for one in parameters(name)}
    assert state(kind_of(name)(**facts)) == state(EXAMPLES[name])


@pytest.mark.parametrize("name", KINDS)
def test_error_can_be_raised_from_another_and_caught_by_its_bases(name: str) -> None:
    """The cause and the notes stay with it; it is equal to itself alone."""
    error, cause = made(name), ValueError("cause")
    for base in type(error).__mro__[:-1]:
        with pytest.raises(base) as caught:
            raise error from cause
        assert caught.value is error
        assert error.__cause__ is cause
    assert error != made(name)
    assert len({error, made(name)}) == 2


@pytest.mark.parametrize("name", KINDS)
def test_a_users_class_may_have_its_own_constructor_and_annotations(name: str) -> None:
    """It may be below each class, as below a built-in exception."""
    base: Any = kind_of(name)

    class Own(base):  # type: ignore[misc]
        code: int

        def __init__(self, code: int) -> None:
            self.code = code

    assert Own(5).code == 5

    class Plain(base):  # type: ignore[misc]
        code: int

    assert signature_of(Plain) == KINDS[name][1]


@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_error_survives_pickling_and_copying(name: str, *, least: bool) -> None:
    """Errors cross process boundaries (multiprocessing, Spark) with their facts."""
    error = made(name, least=least)
    ways: list[Callable[[LogStoreError], LogStoreError]] = [copy.copy, copy.deepcopy]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        ways.append(lambda e, p=protocol: pickle.loads(pickle.dumps(e, p)))
    for way in ways:
        again = way(error)
        assert type(again) is type(error)
        assert state(again) == state(error)
        assert state(way(again)) == state(error)


def test_out_of_range_says_what_can_be_read() -> None:
    """Requested, start and end, and the partition."""
    error = logstore.OffsetOutOfRangeError(9, 1, 5, partition="a-0")
    for part in ("9", "[1, 5]", "a-0", "earliest"):
        assert part in str(error)


def test_corrupt_record_says_where_and_what_to_do() -> None:
    """Reason, path, position, offset, and the next step."""
    error = EXAMPLES["CorruptRecordError"]
    assert isinstance(error, errors.CorruptRecordError)
    for part in ("checksum differs", "/p", "17", "4", "logstore-dump verify"):
        assert part in str(error)
    assert error.next_offset == 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_storage_error_of_a_full_disk_is_disk_full(code: int) -> None:
    """Space, quota and file size limit are one condition to the caller."""
    error = errors.storage_error(OSError(code, "x"), "append to", "/p", "Nothing more.")
    assert type(error) is logstore.DiskFullError
    assert (error.errno, error.filename, error.action) == (code, "/p", "append to")
    assert str(error).endswith("Nothing more.")


def test_storage_error_keeps_what_the_system_said() -> None:
    """errno, path, action, and the message of the system."""
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
    """The error is of a background task, or of a call that was partly done."""
    error = EXAMPLES[name]
    renamed = errors.renamed_error(error, "in the background")
    partly = errors.partly_done(error, ((1, range(3, 5)), (2, range(0))))
    assert str(renamed) == f"in the background: {error}"
    assert str(partly) == (
        f"{error}. Appended before the error: offsets 3 to 4 of partition 1"
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
    """A message that names its cause has one even if the cause was a signal."""
    assert errors.error_text(error) == text


def test_name_that_is_being_imported_is_a_call_from_inside_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler, or a finalizer, may interrupt the import."""
    assert logstore.RecordBatch
    monkeypatch.delitem(vars(logstore), "RecordBatch")
    partial = types.ModuleType("logstore.record.batch")
    monkeypatch.setitem(sys.modules, "logstore.record.batch", partial)
    with pytest.raises(
        logstore.errors.ReentrantCallError, match=r"logstore\.RecordBatch is"
    ):
        _ = logstore.RecordBatch
    monkeypatch.undo()
    assert logstore.RecordBatch


def test_import_that_meets_itself_is_a_call_from_inside_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no error of an unrelated import. If Python has lost track of the lock of a
    module, it is made again."""
    real = importlib.import_module
    spec = ModuleSpec("logstore.of_a_test", None)
    module = types.ModuleType(spec.name)
    module.__spec__ = spec
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.delitem(vars(logstore), "RecordBatch", raising=False)
    raised: list[Exception] = []

    def imported(name: str) -> types.ModuleType:
        if name == "logstore.record.batch" and raised:
            raise raised.pop()
        return real(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    raised.append(ImportError("partly", name=spec.name))
    with pytest.raises(ImportError, match="partly"):
        _ = logstore.RecordBatch
    spec._initializing = True  # type: ignore[attr-defined]
    raised.append(ImportError("partly", name=spec.name))
    with pytest.raises(
        logstore.errors.ReentrantCallError, match=r"logstore\.RecordBatch is"
    ):
        _ = logstore.RecordBatch
    raised.append(KeyError(140_258_431_810_432))
    assert logstore.RecordBatch
    assert not raised
