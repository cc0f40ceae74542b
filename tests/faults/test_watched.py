"""Tests of the watchdog of cases, and of interrupts between two instructions."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import logstore
from faults.interrupts import Interrupt, Interrupter
from faults.scene import Scene
from faults.scene_log import Log, Plan
from faults.watched import Broken, Said, Watch, watch


def _hang(seed: int, folder: Path, seen: Watch) -> None:
    seen.done += 3
    seen.say("waiting for nothing")
    threading.Event().wait()


def _die(seed: int, folder: Path, seen: Watch) -> None:
    seen.say("dying")
    os.kill(os.getpid(), signal.SIGKILL)


def _break(seed: int, folder: Path, seen: Watch) -> None:
    seen.say("breaking")
    raise Broken("it is broken")


def _break_late(seed: int, folder: Path, seen: Watch) -> None:
    seen.say("+ append [b'7.xx']")
    for number in range(100):
        seen.say(f"+ append [b'1{number}.']")
    raise Broken("b'7.xxx' is lost")


def _lose_a_thread(seed: int, folder: Path, seen: Watch) -> None:
    def fail() -> None:
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def _slow(seed: int, folder: Path, seen: Watch) -> None:
    for number in range(8):
        seen.say(f"step {number}")
        seen.done += 1
        time.sleep(0.2)
    seen.notes["steps"] += 8


def test_case_that_hangs_is_a_failure_that_tells_where(tmp_path: Path) -> None:
    """The failure has the case's last line, and the place where its thread waits."""
    said = watch(_hang, 1, str(tmp_path), quiet_s=1)
    assert said.done == 4
    assert "hangs" in said.failure
    assert "waiting for nothing" in said.failure
    assert "test_watched.py" in said.failure
    assert "_hang" in said.failure
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (_die, "died"),
        (_break, "it is broken (breaking)"),
        (_lose_a_thread, "a thread has died: ValueError('in a thread')"),
    ],
    ids=["dies", "breaks", "thread-dies"],
)
def test_case_that_fails_says_so(tmp_path: Path, work: object, words: str) -> None:
    """The failure names each kind of end."""
    said = watch(work, 1, str(tmp_path))  # type: ignore[arg-type]
    assert words in said.failure


def test_failure_tells_what_was_said_about_its_value(tmp_path: Path) -> None:
    """The failure includes early messages about its value."""
    failure = watch(_break_late, 1, str(tmp_path)).failure
    assert "+ append [b'7.xx']" in failure
    assert "b'199.'" in failure
    assert "b'110.'" not in failure


def test_case_that_goes_on_is_no_failure(tmp_path: Path) -> None:
    """The total time of a case that announces its steps is not limited."""
    assert watch(_slow, 1, str(tmp_path), quiet_s=1) == Said(8, "", {"steps": 8})


def _strikes(call: object, lock: object) -> int:
    """Interrupt a call at each of its instructions; how often the lock stayed held."""
    left = 0
    before = signal.getsignal(signal.SIGUSR2)
    try:
        for at in range(1, 60):
            raised = None
            try:
                Interrupter([at])(SimpleNamespace(call=call))  # type: ignore[arg-type]
            except Interrupt as error:
                raised = error
            if lock.locked():  # type: ignore[attr-defined]
                left += 1
                assert raised is not None
                lock.release()  # type: ignore[attr-defined]
    finally:
        signal.signal(signal.SIGUSR2, before)
    return left


def test_interrupts_strike_only_where_signals_are_handled() -> None:
    """A lock of the interpreter is entered and left in one step; a Condition is not."""
    # The code of tests is not interrupted, so this code has another file name.
    scope: dict[str, object] = {"lock": threading.Lock()}
    scope["condition"] = threading.Condition(scope["lock"])  # type: ignore[arg-type]
    code = "def {0}():\n with {0}_:\n  len('')\n"
    for name in ("lock", "condition"):
        scope[f"{name}_"] = scope[name]
        exec(compile(code.format(name), "elsewhere.py", "exec"), scope)
    lock = scope["lock_"]
    assert _strikes(scope["lock"], lock) == 0
    assert _strikes(scope["condition"], lock) > 0


def test_log_knows_what_may_be_there() -> None:
    """Acknowledged records are there; interrupted calls are there as a whole, or not;
    there is nothing else."""
    log = Log("t", 0)
    log.told(0, b"0.")
    with pytest.raises(Broken, match="told twice"):
        log.told(0, b"1.")
    plan = Plan("append", lambda: None, appends=[(log, [b"2.", b"3."])])
    for found in ([], [b"2.", b"3."]):
        log.loose = [plan]
        log.values = {0: b"0."}
        log.settle(0, list(enumerate([b"0.", *found])), is_ended=False, where="it")
        assert len(log.values) == 1 + len(found)
    for found, words in (
        ([], "nothing"),
        ([b"0.", b"2."], "1 of the 2"),
        ([b"0.", b"3."], "another order"),
        ([b"0.", b"9."], "not acknowledged"),
        ([b"9."], "not b'0.'"),
    ):
        log.loose = [plan]
        log.values = {0: b"0."}
        with pytest.raises(Broken, match=words):
            log.settle(0, list(enumerate(found)), is_ended=False, where="it")


@pytest.mark.parametrize("fails", [False, True])
def test_scene_knows_that_no_record_goes_to_a_topic_made_anew(
    tmp_path: Path, fails: bool
) -> None:
    """Topic.append looks for its partition after the partitioner's call: the topic is
    another one by then."""

    def anew(plan: Plan) -> object:
        if not plan.what.startswith("Topic.append"):
            return plan.call()
        assert scene.perform(scene.plan("delete_topic")) is None
        scene.store.create_topic("x", 3)
        scene._made("x", 3)
        try:
            return plan.call()
        finally:
            if fails:
                raise KeyboardInterrupt

    rng = random.Random(1)
    scene = Scene(tmp_path / "store", rng, Watch(), topics=1)
    scene.store.create_topic("x", 3)
    scene._made("x", 3)
    scene.topics.pop("a")
    plan = scene.plan("topic_append")
    scene.topics["a"] = 2
    scene.around = anew
    error = KeyboardInterrupt if fails else logstore.TopicNotFoundError
    assert isinstance(scene.perform(plan), error)
    assert sum(len(partition) for partition in scene.store.topic("x")) == 0
    scene.settle("the store")
    scene.store.close()
