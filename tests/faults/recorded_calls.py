"""Files that a power cut may leave, derived from a program's recorded system calls.

Independent of the library's own interface to the system: a C library that is preloaded
into a process records all changes of files (`recorder.c`), `powercut` derives their
possible states at each moment, and `accounts` opens and checks each state. Also in a
real process: each kind of call failing, once or permanently, short writes, a limit on
the size of files, and SIGKILL at the n-th call.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults import accounts
from faults.accounts import Account, Broken
from faults.method import Tally
from faults.powercut import EVENT, PROMISE, Change, Cut, Disk, Recording, variants
from faults.programs import PROGRAMS
from faults.programs_services import EACH_CALL, SERVICE_PROGRAMS
from faults.recorded_child import UNNAMED
from faults.workers import spread
from support.damage import restart_machine

NAME = "recorded-calls"
UNIT = "power cuts and faults"
COUNTS = {"commit": 500, "nightly": 10_000, "release": 20_000}

_HERE = Path(__file__).resolve().parent
# Shares of ten states: power cuts after a run in which a sync failed, and runs with a
# call that fails or kills.
_FAILED_SYNCS, _FAULTS = 2, 1
# Share of kills and power cuts at each call of short programs.
_EACH_CALL = 1
_STATES_PER_RUN = 400
_STATES_MIN = 30
_FAULTS_PER_RUN = 40
_MODELS = ("weak", "ext4")
_NAMES = sorted({*PROGRAMS, *SERVICE_PROGRAMS})
# Plausible errors of a call; 0 stands for SIGKILL.
_ERRORS = (
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EMFILE, errno.EROFS,
    errno.EINTR, errno.ENOMEM,
)  # fmt: skip


_MARK = accounts.line(accounts.MARK, "")


def scratch() -> str | None:
    """The directory of states: memory, if there is some."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(count: int, seed: int, tally: Tally) -> None:
    """Checks `count` states and faults."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=scratch()) as folder:
        library = Path(folder) / "recorder.so"
        problem = build(library)
        if problem:
            tally.skip(problem, count)
            return
        kinds: Counter[str] = Counter()
        while tally.done < count:
            # A run may have fewer states than requested: then another one follows.
            tasks = _tasks(count - tally.done, seed, folder, str(library))
            for kind, done, failures in spread(states_of, tasks):
                kinds[kind] += done
                tally.passed(done - len(failures))
                for failure in failures:
                    tally.failed(failure)
            seed += 1_000
        tally.note(", ".join(f"{kind} {n:,}" for kind, n in sorted(kinds.items())))


def build(library: Path) -> str:
    """Compile the recorder; "" or why it cannot be."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        return "no C compiler"
    flags = "-std=c11 -O1 -Wall -Wextra -Werror -shared -fPIC"
    command = [gcc, *flags.split(), "-o", str(library), str(_HERE / "recorder.c")]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return ""


def _tasks(
    count: int, seed: int, folder: str, library: str
) -> Iterator[tuple[str, str, str, int, int, str, str]]:
    """(kind, model, program, seed, count, folder, library) of each task."""
    number = seed
    shares = {
        "failing syncs": count * _FAILED_SYNCS // 10,
        "failing calls": count * _FAULTS // 10,
        "each call": count * _EACH_CALL // 10,
    }
    shares["power cuts"] = count - sum(shares.values())
    for kind, share in shares.items():
        names = sorted(EACH_CALL if kind == "each call" else _NAMES)
        size = _FAULTS_PER_RUN if kind == "failing calls" else _STATES_PER_RUN
        while share > 0:
            # Use as many programs as the number of states allows.
            size = min(size, max(share // len(names), _STATES_MIN))
            task = (_MODELS[number // len(names) % 2], names[number % len(names)])
            yield (kind, *task, 1000 * seed + number, min(share, size), folder, library)
            share -= size
            number += 1


class _Child:
    """The process with the preloaded library; each call is a run of a program."""

    def __init__(self, folder: Path, library: str) -> None:
        self.folder = folder
        environment = {**os.environ, "LD_PRELOAD": library}
        paths = [str(_HERE.parent), *sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.recorded_child"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, seed: int, **plan: int) -> tuple[Any, bytes, Any]:
        """(exit status, its trace, its counts of calls and syncs or its error)."""
        store, trace = self.folder / "store", self.folder / "trace"
        counts = self.folder / "counts"
        for old in (store, counts):
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        task = {"program": program, "seed": seed, "store": str(store), **plan}
        task |= {"trace": str(trace), "counts": str(counts)}
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        ended = json.loads(process.stdout.readline())
        found = json.loads(counts.read_bytes()) if counts.exists() else None
        return ended, trace.read_bytes(), found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def states_of(
    kind: str,
    model: str,
    program: str,
    seed: int,
    count: int,
    folder: str,
    library: str,
) -> tuple[str, int, list[str]]:
    """(kind, number of states, failures) of one task."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        child = _Child(Path(own), library)
        try:
            if kind == "failing calls":
                done, failures = _faults(child, program, seed, count)
            elif kind == "each call":
                done, failures = _each_call(child, model, program, seed, count)
            else:
                sync = kind == "failing syncs"
                done, failures = _cuts(child, model, program, seed, count, sync)
        finally:
            child.close()
    where = f"{kind}, {model}, {program} {seed}"
    return kind, done, [f"{where}: {failure}" for failure in failures]


# ---------------------------------------------------------------- power cuts


def _cuts(
    child: _Child, model: str, program: str, seed: int, count: int, failing: bool
) -> tuple[int, list[str]]:
    """Power cuts at all moments of one run; with `failing`, of one in which a sync
    failed."""
    rng = random.Random(seed)
    plan = {}
    if failing:
        _, _, counts = child.run(program, seed)
        plan["sync"] = rng.randrange(counts[1])
    ended, trace, counts = child.run(program, seed, **plan)
    if ended != 0:
        return 1, [f"{plan} ended with {ended}: {counts}"]
    recording = Recording(trace, str(child.folder / "store"))
    problem = _difference(recording, child.folder / "store")
    if problem:
        return 1, [problem]
    return _judged(child, recording, model, count, rng, plan)


def _judged(
    child: _Child,
    recording: Recording,
    model: str,
    count: int,
    rng: random.Random,
    plan: dict[str, int],
    begin: int = 0,
) -> tuple[int, list[str]]:
    """States of a recording, from an event on."""
    failures, done = [], 0
    for words, disk, lines in _states(recording, model, count, rng, begin):
        done += 1
        state = child.folder / "state"
        disk.write_to(state)
        restart_machine(state)
        account = Account(lines)
        try:
            account.judge(state)
        except Broken as broken:
            failures.append(f"{plan} {words}: {broken}")
        shutil.rmtree(state)
    return done, failures


def _difference(recording: Recording, store: Path) -> str:
    """Difference of the model's last state from the real one, if it missed a call."""
    if recording.unknown:
        return f"calls that are not modelled: {sorted(set(recording.unknown))}"
    real = {
        str(path.relative_to(store)): path.read_bytes() if path.is_file() else None
        for path in store.rglob("*")
    }
    model = dict(recording.disk.tree())
    for path in sorted(real.keys() | model.keys()):
        if real.get(path, 0) != model.get(path, 0):
            return f"the recording and the disk differ at {path}"
    return ""


def _states(
    recording: Recording, model: str, count: int, rng: random.Random, begin: int
) -> Iterator[tuple[str, Disk, list[bytes]]]:
    """(in words, the disk, the promises so far) of states that a power cut may leave,
    `count` of them, spread over all events from `begin` to the last."""
    cut = Cut(model)
    lines: list[bytes] = []
    events = recording.events
    moments = Counter(rng.choices(range(begin, len(events)), k=max(count // 5, 1)))
    left = count
    for at, event in enumerate(events):
        cut.step(event)
        if event.kind == "promise":
            lines.append(event.text)
        if not moments[at]:
            continue
        pending = [change for _, change in cut.pending]
        found: dict[tuple[Change, ...], str] = {}
        for words, changes in variants(
            pending, event.kind == "change", rng, cut.durable
        ):
            found.setdefault(tuple(cut.lawful(changes, pending)), words)
        for kept in rng.sample(list(found), min(5 * moments[at], len(found), left)):
            disk = cut.durable.copy()
            for change in kept:
                disk.apply(change)
            text = f"after event {at} ({event.kind}), {len(pending)} pending"
            yield f"{text}, {found[kept]}", disk, list(lines)
            left -= 1


def _each_call(
    child: _Child, model: str, program: str, seed: int, count: int
) -> tuple[int, list[str]]:
    """Kills at each call after the mark of a program, and power cuts after each; a
    sample of `count` if there are more."""
    rng = random.Random(seed)
    ended, trace, counts = child.run(program, seed)
    if ended != 0:
        return 1, [f"ended with {ended}: {counts}"]
    calls, _, mark = counts
    recording = Recording(trace, str(child.folder / "store"))
    problem = _difference(recording, child.folder / "store")
    if problem:
        return 1, [problem]
    marks = [n for n, e in enumerate(recording.events) if e.text == _MARK]
    cuts = count - min(-(-count // 2), calls - mark)
    done, failures = _judged(child, recording, model, cuts, rng, {}, marks[-1])
    numbers = rng.sample(range(mark, calls), min(count - done, calls - mark))
    for nth in sorted(numbers):
        failures += _after_fault(child, program, seed, {"nth": nth, "error": 0})
    return done + len(numbers), failures


# ---------------------------------------------------------------- failing calls


def _faults(
    child: _Child, program: str, seed: int, count: int
) -> tuple[int, list[str]]:
    """Run a program with a failing call, or a kill, at another call each time."""
    rng = random.Random(seed)
    ended, _, counts = child.run(program, seed)
    if ended != 0:
        return 1, [f"ended with {ended}: {counts}"]
    failures = []
    for _ in range(count):
        failures += _after_fault(child, program, seed, _plan(rng, counts[0]))
    return count, failures


def _after_fault(
    child: _Child, program: str, seed: int, plan: dict[str, int]
) -> list[str]:
    """Problems of a run in which a call fails, or kills, and of the files it left."""
    ended, trace, found = child.run(program, seed, **plan)
    killed = plan.get("error") == 0
    if ended != 0 and not (killed and ended == -9):
        what = f"an error without a name: {found}" if ended == UNNAMED else ended
        return [f"{plan} ended with {what}"]
    try:
        Account(_promised(trace)).judge(child.folder / "store", written=True)
    except Broken as broken:
        return [f"{plan}: {broken}"]
    return []


def _plan(rng: random.Random, calls: int) -> dict[str, int]:
    nth = rng.randrange(calls)
    kind = rng.randrange(10)
    if kind < 2:
        return {"nth": nth, "error": 0}
    if kind == 2:
        return {"fsize": rng.choice((64, 300, 1000, 3000))}
    if kind == 3:
        return {"nth": nth, "error": errno.ENOSPC, "short": 1}
    error = rng.choice(_ERRORS)
    # Python retries a call for ever that fails with EINTR for ever, as documented.
    goes_on = int(rng.random() < 0.4 and error != errno.EINTR)
    return {"nth": nth, "error": error, "goes_on": goes_on}


def _promised(trace: bytes) -> list[bytes]:
    """The promises in a trace, whose files exist."""
    lines, pos = [], 0
    while pos < len(trace):
        kind, _, _, _, _, n, m = EVENT.unpack_from(trace, pos)
        pos += EVENT.size
        if kind == PROMISE:
            lines.append(trace[pos : pos + n])
        pos += n + m
    return lines
