"""`kafka-dump-log`, and the options of ``--kafka``."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.kafka.decoders import (
    SHARE_SINCE,
    offsets_decoder,
    share_decoder,
    transaction_decoder,
)
from logstore.cli.kafka.dump import Dump
from logstore.cli.kafka.java import decoded
from logstore.cli.kafka.wanted import (
    MAX_MESSAGE_SIZE,
    Decoder,
    MessageError,
    Wanted,
)
from logstore.cli.output import Printer
from logstore.cli.sources import Sources

__all__ = ["check_kafka", "dump_file", "dump_sources", "kafka_dump_log"]

EXAMPLES: Final = [
    "kafka-dump-log --files data/orders-0/00000000000000000000.log --print-data-log",
    "kafka-dump-log --files data/orders-0/00000000000000000000.index,"
    "data/orders-0/00000000000000000000.timeindex --verify-index-only",
    "kafka-dump-log --offsets-decoder --files "
    "kafka/__consumer_offsets-2/00000000000000000000.log",
]
_INT_MAX: Final = (1 << 31) - 1
_RELEASE: Final = "3.9"
# Options of other subcommands that need --kafka: parameter name -> as typed.
_WITH_KAFKA_ONLY: Final = {
    name: "--" + name.replace("_", "-")
    for name in (
        "kafka_release",
        "offsets_decoder",
        "transaction_log_decoder",
        "share_group_state_decoder",
        "cluster_metadata_decoder",
        "remote_log_metadata_decoder",
        "key_decoder_class",
        "value_decoder_class",
        "skip_record_metadata",
        "max_bytes",
        "max_message_size",
        "index_sanity_check",
        "verify_index_only",
    )
}
_WITHOUT_KAFKA: Final = {
    "first": "--from",
    "stop": "--until",
    "stop_alias": "--to",
    "skip": "--skip",
    "limit": "--limit",
    "key": "--key",
    "assume_partitioner": "--assume-partitioner",
    "last": "--last",
    "grep": "--grep",
    "template": "--template",
}
_DECODERS: Final[dict[str, Callable[[str], Decoder]]] = {
    "offsets_decoder": offsets_decoder,
    "transaction_log_decoder": transaction_decoder,
    "share_group_state_decoder": share_decoder,
}
# Of Kafka's own, by the last part of their names.
_PACKAGES: Final = ("kafka.serializer.", "org.apache.kafka.tools.api.")


def _number(format: str, name: str) -> Callable[[bytes], str]:
    number = struct.Struct(format)

    def decode(data: bytes) -> str:
        if len(data) < number.size:
            raise MessageError(
                f"{name} needs {number.size} bytes; a key or value has {len(data)}"
            )
        return str(number.unpack_from(data)[0])

    return decode


_CLASSES: Final[dict[str, Callable[[bytes], str]]] = {
    "StringDecoder": decoded,
    "IntegerDecoder": _number(">i", "IntegerDecoder"),
    "LongDecoder": _number(">q", "LongDecoder"),
}


def _decoder_of(name: str | None, option: str) -> Callable[[bytes], object]:
    """The function that a decoder class stands for."""
    if name is None:
        return decoded
    package, _, last = name.rpartition(".")
    if f"{package}." in _PACKAGES and last in _CLASSES:
        return _CLASSES[last]
    raise click.UsageError(
        f"{option} {name}: Java classes are not run; give StringDecoder, "
        f"IntegerDecoder or LongDecoder of {_PACKAGES[1][:-1]}"
    )


def _by_classes(arguments: dict[str, Any]) -> Decoder | None:
    names = [arguments.get(f"{what}_decoder_class") for what in ("key", "value")]
    if names == [None, None]:
        return None
    of_key, of_value = (
        _decoder_of(name, f"--{what}-decoder-class")
        for name, what in zip(names, ("key", "value"), strict=True)
    )

    def decode(
        offset: int, key: bytes | None, value: bytes | None
    ) -> tuple[str | None, str | None]:
        return (
            None if key is None else str(of_key(key)),
            None if value is None else str(of_value(value)),
        )

    return decode


def _topic_decoder(arguments: dict[str, Any], release: str) -> Decoder | None:
    """The decoder of an internal topic; the first one that is asked for, as the tool
    has it."""
    for name in ("cluster_metadata_decoder", "remote_log_metadata_decoder"):
        if arguments.get(name):
            raise click.UsageError(
                f"{_WITH_KAFKA_ONLY[name]} is not supported: each release changes the "
                "format of these records; use Kafka's own tool"
            )
    if arguments.get("share_group_state_decoder") and release < SHARE_SINCE:
        raise click.UsageError(
            f"--share-group-state-decoder needs --kafka-release {SHARE_SINCE} or later"
        )
    for name, decoder_of in _DECODERS.items():
        if arguments.get(name):
            return decoder_of(release)
    return None


def _wanted(arguments: dict[str, Any], *, deep: bool, contents: bool) -> Wanted:
    release = arguments.get("kafka_release") or _RELEASE
    by_class, by_topic = _by_classes(arguments), _topic_decoder(arguments, release)
    contents = contents or by_class is not None or by_topic is not None
    size, limit = arguments.get("max_message_size"), arguments.get("max_bytes")
    for name, value in (("max-message-size", size), ("max-bytes", limit)):
        if value is not None and value > _INT_MAX:
            raise click.UsageError(f"--{name} {value} is above {_INT_MAX}")
    return Wanted(
        release,
        deep=deep or contents,
        contents=contents,
        metadata=not arguments.get("skip_record_metadata"),
        decoder=by_topic or by_class,
        max_bytes=None if limit == _INT_MAX else limit,
        max_message_size=MAX_MESSAGE_SIZE if size is None else size,
        sanity_only=bool(arguments.get("index_sanity_check")),
        verify_only=bool(arguments.get("verify_index_only")),
    )


def check_kafka(arguments: dict[str, Any]) -> None:
    """Refuse options of ``--kafka`` without it; with it, refuse options that choose or
    shape records: it prints whole files.

    Raises:
        click.UsageError: such an option was given.
    """
    if not arguments["kafka"]:
        for name, typed in _WITH_KAFKA_ONLY.items():
            if arguments.get(name) not in (None, False):
                raise click.UsageError(f"{typed} needs --kafka")
        return
    for name, typed in _WITHOUT_KAFKA.items():
        if arguments.get(name) not in (None, 0):
            raise click.UsageError(
                f"--kafka prints whole files: {typed} cannot be combined with it"
            )
    if arguments["form"] != "text":
        raise click.UsageError(
            f"--kafka and --format {arguments['form']} exclude each other"
        )


def dump_sources(
    sources: Sources, printer: Printer, arguments: dict[str, Any], *, deep: bool
) -> int:
    """``records --kafka`` (`deep`) and ``batches --kafka``; returns the status."""
    wanted = _wanted(arguments, deep=deep, contents=deep)
    dump = Dump(printer, wanted, store_config(arguments))
    for source in sources.files:
        dump.file(source.path, is_log=True)
    return dump.finish()


def dump_file(path: str, arguments: dict[str, Any]) -> int:
    """``index --kafka``; returns the status."""
    dump = Dump(
        Printer(),
        _wanted(arguments, deep=False, contents=False),
        logstore.StoreConfig(),
    )
    dump.file(path)
    return dump.finish()


@command(
    "kafka-dump-log",
    "Print the output of Kafka's tool of this name, with its options.",
    EXAMPLES,
)
@options.kafka_files
@options.kafka_depth
@options.kafka_release
@options.kafka_records
@options.kafka_max_bytes
@options.kafka_index
@options.decompressed
def kafka_dump_log(files: str, **arguments: Any) -> int:
    """`logstore-dump kafka-dump-log`."""
    wanted = _wanted(
        arguments,
        deep=arguments["deep_iteration"],
        contents=arguments["print_data_log"],
    )
    dump = Dump(Printer(), wanted, store_config(arguments))
    for path in files.split(","):
        if path:
            dump.file(path)
    return dump.finish()
