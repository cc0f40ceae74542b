"""Service calls that `failing_calls` makes fail: a group's file, publications, hand-in,
the epochs of producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.service_promises import IN
from faults.services import ServiceProgram
from faults.workloads import Program

__all__ = ["SERVICE_SCENARIOS"]


def _serving(seed: int) -> ServiceProgram:
    """A store with records that are not consumed yet."""
    program = ServiceProgram(seed)
    program.open()
    for _ in range(2):
        program.do_create_topic()
    program.do_take_over()
    for _ in range(4):
        program.do_produce()
    for partition in program.store.topic(IN):
        partition.flush()
    program.see()
    return program


def _with_member(seed: int) -> ServiceProgram:
    """A member that has committed."""
    program = _serving(seed)
    program.do_commit_durable()
    program.do_produce()
    program.do_poll()
    return program


def _with_full_file(seed: int) -> ServiceProgram:
    """A member whose next commit rewrites the group's file."""
    program = _with_member(seed)
    file = program.consumer("g")._core.place.member.group.file
    while file.end.size + _COMMIT_BYTES < file._rewrite_at:
        program.do_commit(durable=program.rng.random() < 0.5)
    return program


# Minimum size of a commit in two partitions.
_COMMIT_BYTES = 200


def _alone(seed: int) -> ServiceProgram:
    """A store and a group after a kill, open in no process."""
    program = _with_member(seed)
    program.do_transaction()
    program.do_submit()
    for partition in program.store.topic(IN):
        partition.flush()
    program.see()
    program.disk = program.disk.kill()
    program.store._context.is_closed = True
    return program


def _with_transactions(seed: int) -> ServiceProgram:
    program = _serving(seed)
    program.do_transaction()
    program.do_produce()
    program.see()
    return program


def _step(name: str) -> Callable[[Any], None]:
    def act(program: Any) -> None:
        getattr(program, name)()

    return act


SERVICE_SCENARIOS: dict[
    str, tuple[Callable[[int], Program], Callable[[Program], None]]
] = {
    "join a group": (_serving, _step("do_poll")),
    "first commit": (_serving, _step("do_commit")),
    "commit": (_with_member, _step("do_commit")),
    "commit, durable": (_with_member, _step("do_commit_durable")),
    "write a group's file anew": (_with_full_file, _step("do_commit_durable")),
    "leave a group": (_with_member, _step("do_leave")),
    "reset offsets": (_alone, _step("reset_alone")),
    "first transaction": (_serving, _step("do_transaction")),
    "transaction": (_with_transactions, _step("do_transaction")),
    "serve a hand-in": (_with_member, _step("do_submit")),
    "hand in, nobody has the store": (_alone, _step("submit_alone")),
    "take a producer over": (_serving, _step("do_take_over")),
    "producer": (_with_member, _step("do_produce")),
}
