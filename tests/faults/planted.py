"""Bugs planted in the engine: a method that was never seen to fail is not known to
work.

Each bug is a change of a few lines in a copy of the source. The method that must catch
it runs on that copy, in a separate process, until it fails. A method that finds nothing
is a failure here, and so is a change whose lines are not in the source any more.
"""

from __future__ import annotations

import pathlib
import signal

from faults.method import Part, Skip, Tally
from faults.planted_bug import BUGS_OF_HAND_IN, Bug, hunt_all, run_on_copy
from faults.planted_cancellations import BUGS_OF_CANCELLATIONS
from faults.planted_compaction import BUGS_OF_COMPACTION
from faults.planted_copies import BUGS_OF_COPIES
from faults.planted_full import BUGS_OF_FULL_DISKS
from faults.planted_groups import BUGS_OF_GROUPS
from faults.planted_incarnations import BUGS_OF_INCARNATIONS
from faults.planted_java import BUGS_OF_JAVA
from faults.planted_lives import BUGS_OF_LIVES
from faults.planted_producers import PRODUCER_BUGS
from faults.planted_services import BUGS_OF_SERVICES
from faults.planted_storms import BUGS_OF_STORMS

NAME = "planted"
UNIT = "bugs caught"

# How a process ends that C has brought down.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_APPENDS = ("append", "append_many", "append_durable", "flush")

BUGS = (
    Bug(
        "no sync before the promise",
        "log/write/active_segment.py",
        (("context.files.sync(writer.fd if fd is None else fd)", "pass"),),
        "disk_states",
        _APPENDS,
        quick=1,
    ),
    Bug(
        "directory not synced after a segment was created",
        "log/write/active_segment.py",
        (("            directory.sync()\n        except OSError as error:\n"
          "            self._health.is_blocked", "        except OSError as error:\n"
          "            self._health.is_blocked"),),
        "disk_states",
        (*_APPENDS, "roll"),
    ),
    Bug(
        "directory not synced after a state file was renamed",
        "io/directory.py",
        (("        if sync:\n            self.sync()\n", ""),),
        "disk_states",
        quick=4,
    ),
    Bug(
        "renamed before its bytes are synced",
        "io/directory.py",
        (("            self.files.write(fd, data, 0)\n            self.files.sync(fd)",
          "            self.files.write(fd, data, 0)"),),
        "disk_states",
        quick=1,
    ),
    Bug(
        "checksums not checked by readers",
        "log/read/reader.py",
        (("            chunk.checks,\n",
          "            chunk.checks - native.CHECK_CRC,\n"),),
        "lying_disk",
    ),
    Bug(
        "checksums not checked by recovery",
        "log/recover/survey.py",
        (("checks=segment.checks", "checks=segment.checks & ~native.CHECK_CRC"),),
        "disk_states",
        _APPENDS,
    ),
    Bug(
        "zeros at the end taken for log",
        "log/scan.py",
        (("return TailScan(end_pos, last_offset, batches, stop, error, size,"
          " wrappers)\n        if end == 0:",
          "return TailScan(size if zeros else end_pos, last_offset, batches, stop,"
          " error, size, wrappers)\n        if end == 0:"),),
        "disk_states",
        _APPENDS,
    ),
    Bug(
        "a torn tail is not cut",
        "log/recover/apply.py",
        (("                files.truncate(fd, pos)\n                files.sync(fd)",
          "                pass"),
         ("        if plan.rewritten_from is None or self.damage is not None:\n",
          "        if True:\n")),
        "disk_states",
        _APPENDS,
    ),
    Bug(
        "cut below the durable point",
        "log/recover/log_end.py",
        (("            is_torn = is_torn_tail(walk, durable_pos, floor, metadata)\n"
          "            if findings.is_condemned(base) or not is_torn:",
          "            import dataclasses\n"
          "            known = dataclasses.replace(metadata, clean=False)\n"
          "            if not is_torn_tail(walk, 0, 0, known):"),
         ("        if size >= durable > 0 and not own.is_truncating:",
          "        if False:"),
         ("        if 0 <= size < durable:\n            self._lost_end(size, "
          "durable, own)\n", "        durable = 0\n"),
         ("self._facts.are_indexed(ReadIndexes(base, segment.is_lost))", "False")),
        "lying_disk",
    ),
    Bug(
        "a failed sync is tried again",
        "log/write/active_segment.py",
        (("            context.files.sync(writer.fd if fd is None else fd)\n"
          "        except OSError as error:\n",
          "            context.files.sync(writer.fd if fd is None else fd)\n"
          "        except OSError as error:\n"
          "            context.files.sync(writer.fd)\n            return\n"),),
        "failing_calls",
        ("append, durable", "flush"),
        call="sync",
        quick=6,
    ),
    Bug(
        "a failed sync does not end the writer",
        "log/write/health.py",
        (("        if self.failed is None:\n            self.failed = again(error)",
          "        if False:\n            self.failed = again(error)"),),
        "failing_calls",
        ("append, durable", "flush"),
    ),
    Bug(
        "a failed append is not undone",
        "log/write/segment_writer.py",
        (("            self.files.truncate(self.fd, self.state.size)\n"
          "            self._reserved = self.state.size\n",
          "            self._reserved = self.state.size\n"),),
        "failing_calls",
        ("append many", "append batches"),
        call="write",
        quick=2,
    ),
    Bug(
        "records are appended to a log without a state file",
        "log/write/log_writer.py",
        (("                self.point.must_record = True\n", ""),),
        "failing_calls",
        ("create a topic",),
        call="write",
    ),
    Bug(
        "durable point written before the sync",
        "log/write/log_writer.py",
        (("durable, cuts, limit))\n        if self.appended",
          "durable, cuts, limit))\n"
          "        self.point.record(self.bounds, writer.state.copy())\n"
          "        if self.appended"),),
        "disk_states",
        _APPENDS,
    ),
    Bug(
        "clean mark not removed before the first append",
        "io/checkpoint/ownership.py",
        (("self._write_owner(False, *fingerprints)",
          "self._write_owner(self.is_clean, *fingerprints)"),),
        "disk_states",
        (*_APPENDS, "reopen"),
    ),
    Bug(
        "clean mark written before the partitions are synced",
        "store/lifetime.py",
        (("        for writer in list(writers.loaded.values()):\n",
          "        if ownership.is_writing:\n"
          "            ends = writers.ends() or {}\n"
          "            ownership.end(ends, writers.starts())\n"
          "        for writer in list(writers.loaded.values()):\n"),),
        "disk_states",
        (*_APPENDS, "reopen"),
    ),
    Bug(
        "an index is trusted by readers",
        "segment.py",
        (("            walk, last_offset = self._walk_before(",
          "            return FileWalk(self, (pos, native.OFFSET_UNKNOWN), buffer)\n"
          "            walk, last_offset = self._walk_before("),),
        "lying_disk",
        (".index",),
    ),
    Bug(
        "index entries counted before they are synced",
        "log/write/durable_point.py",
        (("            self._sync_indexes(state)\n", "            pass\n"),),
        "disk_states",
        (*_APPENDS, "append_batches", "delete_before"),
    ),
    Bug(
        "a deletion is promised before its commit",
        "log/write/deletion.py",
        (("is_committed = log.point.commit(after, point)", "is_committed = True"),),
        "disk_states",
        (*_APPENDS, "delete_before", "retention"),
    ),
    Bug(
        "a swap is finished wrongly",
        "log/recover/apply.py",
        (("directory.rename(name, name.removesuffix(SWAP))",
          "directory.unlink(name)"),),
        "disk_states",
        ("append_many", "roll", "leftovers"),
    ),
    Bug(
        "truncation without a commit",
        "log/write/truncation.py",
        (("        log.point.write(during, state, is_truncating=True, in_place=True)\n",
          ""),),
        "disk_states",
        (*_APPENDS, "truncate_to"),
    ),
    Bug(
        "a finished truncation is finished again after appends",
        "log/write/log_writer.py",
        (("            if self.point.must_record:\n", "            if False:\n"),),
        "disk_states",
        (*_APPENDS, "truncate_to"),
    ),
    Bug(
        "recovery syncs what lies past the durable point, and does not write it again",
        "log/recover/durable.py",
        (("        copy_bytes(directory, fd, durable_pos, size, fd, durable_pos)\n",
          ""),),
        "failing_calls",
        ("append, durable", "flush"),
        quick=10,
    ),
    Bug(
        "recovery does not make durable what it keeps",
        "log/recover/durable.py",
        (("    with directory.opened(log, write=True) as fd:\n",
          "    if True:\n        return\n"
          "    with directory.opened(log, write=True) as fd:\n"),),
        "disk_states",
        (*_APPENDS, "kill"),
    ),
    Bug(
        "the order of batches is not looked at",
        "segment.py",
        (("native.CHECK_ALL | (native.CHECK_OWN if self.is_contiguous else 0)",
          "native.CHECK_CRC"),
         ("if walk is not None and (is_said or is_doubtful):",
          "if walk is not None:")),
        "lying_disk",
    ),
    Bug(
        "the lock is not taken",
        "io/lock.py",
        (("holder = files.lock(fd)", "holder = None"),),
        "lying_disk",
    ),
    Bug(
        "a roll does not sync the old segment",
        "log/write/log_writer.py",
        (("        active.sync(writer, self.bounds.durable)\n        base = ",
          "        base = "),),
        "disk_states",
        (*_APPENDS, "roll"),
    ),
    Bug(
        "a short write is taken for a whole one",
        "io/files.py",
        (("        while done < size:\n            done += native.write_at",
          "        while False:\n            done += native.write_at"),),
        "lying_disk",
        quick=10,
    ),
    Bug(
        "durable_only reads past the durable offset",
        "store/partition/partition_views.py",
        (("self._durable_of(seen) if durable_only else seen.end_offset",
          "seen.end_offset"),),
        "disk_states",
        _APPENDS,
    ),
    Bug(
        "a topic's deletion has no commit, and its directories have nothing of its id",
        "store/topic/topic_changes.py",
        (("self._catalog.settings.write_if_room(name, deleting, is_needed=is_needed)",
          "_ = deleting, is_needed"),
         ("mark = self._catalog.ids.deletion_mark(name)", 'mark = "0" * 32')),
        "disk_states",
        ("create_topic", "delete_topic"),
    ),
    Bug(
        "settings say that a topic is complete before its directories are synced",
        "store/catalog/topics.py",
        (("        self._root.sync()\n\n    def drop_begun", "\n    def drop_begun"),),
        "disk_states",
        ("create_topic", "add_partitions"),
        quick=1,
    ),
    Bug(
        "an entry of a state file is not synced",
        "io/checkpoint/append_file.py",
        (("                native.Step(native.STEP_SYNC, file.fd),\n",
          "                native.Step(native.STEP_UNLOCK, file.fd, 5000),\n"),),
        "disk_states",
        ("create_topic", "add_partitions"),
        quick=7,
    ),
    Bug(
        "a torn entry of a state file is damage",
        "io/checkpoint/entries.py",
        (("if not bodies or _is_followed(data, pos, checksum):", "if True:"),),
        "disk_states",
        (*_APPENDS, "roll", "create_topic"),
        quick=1,
    ),
    Bug(
        "appends go on beside half of a new segment",
        "log/write/log_writer.py",
        (("        if self.active.stray is not None:\n"
          "            self.active.remove_stray()\n",
          "        self.active.stray = None\n"),),
        "failing_calls",
        ("append many", "roll"),
    ),
    Bug(
        "recovery does not look inside wrappers",
        "log/read/damage.py",
        (("    if not active.is_contiguous:\n        return None\n",
          "    return None\n"),),
        "disk_states",
        ("append_many", "append_batches"),
    ),
    Bug(
        "an append that fails behind a roll leaves the state as it is",
        "log/write/log_writer.py",
        (("            self.point.commit(self.bounds, active.state, "
          "is_truncating=True)\n", ""),
         ("            self.point.commit(self.bounds, active.writer.state)\n"
          "            self.point.is_barred", "            self.point.is_barred"),
         ("        self.point.must_record = self.health.is_blocked = True\n", ""),
         ("        self.point.record(self.bounds, state, is_truncating=not is_done)\n",
          "")),
        "failing_calls",
        ("append many", "append batches"),
        call="write",
    ),
    Bug(
        "readers do not stop at a publication",
        "io/checkpoint/publications.py",
        (("            self._cached = key, high_watermarks\n"
          "        return high_watermarks",
          "            self._cached = key, high_watermarks\n        return {}"),),
        "disk_states",
        (*_APPENDS, "publish", "kill"),
    ),
    Bug(
        "a publication that was cut short is not taken back",
        "store/publication/unfinished.py",
        (("                topics.drop_unpublished(key, base)\n",
          "                pass\n"),),
        "disk_states",
        (*_APPENDS, "publish", "kill"),
    ),
    Bug(
        "a publication is committed before its logs are synced",
        "io/checkpoint/append_file.py",
        (("        fds = [*self.fds, calls.file.fd] if self.fds else []\n",
          "        fds = [calls.file.fd for _ in (*self.fds, calls)]\n"),),
        "disk_states",
        (*_APPENDS, "publish", "kill"),
    ),
    Bug(
        "the commit of a publication is not synced",
        "io/checkpoint/append_file.py",
        (("        fds = [*self.fds, calls.file.fd] if self.fds else []\n",
          "        fds = self.fds\n"),),
        "disk_states",
        (*_APPENDS, "publish", "kill"),
    ),
    Bug(
        "a commit is sealed before the syncs have returned",
        "io/checkpoint/growing_file.py",
        (("        done = self._made(calls, calls.sync + 1 + self._is_sealed)\n",
          "        if done := self._made(calls, calls.sync):\n"
          "            calls.make(calls.sync + 2, calls.sync + 1)\n"
          "            done, error = calls.make(calls.sync + 1, calls.sync)\n"
          "            if error is not None:\n"
          "                raise error\n"),),
        "disk_states",
        (*_APPENDS, "publish", "kill"),
    ),
    Bug(
        "a publication begins to a log whose end the journal does not have",
        "io/checkpoint/publication_journal.py",
        (("if known.get(key) != base}", "if known.get(key, base) != base}"),),
        "disk_states",
        ("publish", "kill"),
    ),
    Bug(
        "an append follows a publication, and the journal has its end still",
        "log/write/log_writer.py",
        (("                self.health.release()\n", ""),),
        "disk_states",
        (*_APPENDS, "publish", "kill"),
    ),
    Bug(
        "a staged file that becomes a segment keeps its offsets",
        "log/write/import_segment.py",
        (("offset + shift, length", "offset, length"),),
        "disk_states",
        (*_APPENDS, "publish"),
    ),
    Bug(
        "writers go on where a publication could not be undone",
        "store/publication/group_commit.py",
        (("                writer.fail(error)\n", ""),),
        "failing_calls",
        ("publish",),
        call="read",
        quick=1,
    ),
    Bug(
        "a failed append is undone and not synced",
        "log/write/segment_writer.py",
        (("            self._reserved = self.state.size\n"
          "            self.files.sync(self.fd)\n",
          "            self._reserved = self.state.size\n"),),
        "failing_calls",
        ("append", "first append after opening"),
        call="write",
    ),
    Bug(
        "the base offset is chosen before the lock is taken",
        "log/write/appender.py",
        (("        with log.lock:\n            log.get_ready()\n"
          "            base = log.bounds.end\n"
          "            self.check_expected(expected_offset, count)\n",
          "        base = log.bounds.end\n        with log.lock:\n"
          "            log.get_ready()\n"
          "            self.check_expected(expected_offset, count)\n"),),
        "reentry",
    ),
    Bug(
        "the offset that is expected is chosen before the caller's code has run",
        "store/partition/partition.py",
        (("        rows = pack_rows(values, keys, timestamps_ms",
          "        expected_offset = self._appends.next_offset()\n"
          "        rows = pack_rows(values, keys, timestamps_ms"),),
        "reentry",
    ),
    Bug(
        "a store that is closing counts as closed",
        "store/lifetime.py",
        (("            context.is_closed = True\n            # Not under",
          "            context.is_closed = self.is_finished = True\n"
          "            # Not under"),),
        "interrupts",
    ),
    Bug(
        "locks are taken one by one, and let go of later",
        "store/publication/publisher.py",
        (("        with native.Group([*syncs, *appends]):\n",
          "        with contextlib.ExitStack() as stack:\n"
          "            for one in [*syncs, *appends]:\n"
          "                stack.enter_context(one)\n"),),
        "interrupts",
    ),
    Bug(
        "a child holds on to the lock of its parent",
        "io/lock.py",
        (("        if self.file is not None:\n"
          "            self.file.close()\n"
          "            self.file = None\n\n    def release",
          "        pass\n\n    def release"),
         ("            self._files.unlock_file(self.file.fd)\n", "")),
        "forks",
        quick=1,
    ),
    Bug(
        "a child closes the store of its parent as its own",
        "store/lifetime.py",
        (("        if context.is_forked:\n            context.is_cl",
          "        if False:\n            context.is_cl"),),
        "forks",
        quick=7,
    ),
    Bug(
        "no thread to be had is an error without a name",
        "io/scheduler.py",
        (("        except RuntimeError as error:\n",
          "        except ZeroDivisionError as error:\n"),),
        "limits",
    ),
    Bug(
        "a sync counts as scheduled before it is",
        "log/write/syncs.py",
        (("            context.services.call_later(self.flush_due, "
          "context.config.flush_ms)\n"
          "            self.is_scheduled = True\n",
          "            self.is_scheduled = True\n"
          "            context.services.call_later(self.flush_due, "
          "context.config.flush_ms)\n"),),
        "limits",
    ),
    Bug(
        "a reader does not look at the names in the directory again",
        "log/follow/decide.py",
        (("(now.mtime_ns, now.state) != (before.mtime_ns, before.state)", "False"),),
        "replacements",
        quick=1,
    ),
    Bug(
        "a cut is not noted for readers in other processes",
        "io/checkpoint/cuts.py",
        (("        if serial == self.serial:\n            return NO_CUT\n",
          "        return NO_CUT\n"),),
        "replacements",
    ),
    Bug(
        "a chunk goes on where its last pass ended",
        "record/batch.py",
        (("                yield from native.decoded_records(columns)\n",
          "                yield from native.decoded_records(columns)\n"
          "                self._start = self.next_offset\n"),),
        "second_use",
    ),
    Bug(
        "what was published stays to be published again",
        "store/publication/publisher.py",
        (("        discard(self._root, used)\n", ""),),
        "second_use",
        quick=4,
    ),
    Bug(
        "numbers in state files have no bounds",
        "io/checkpoint/state_fields.py",
        (("    if not low <= value <= high:\n", "    if False:\n"),),
        "lying_input",
        ("states",),
    ),
    Bug(
        "an index is believed where it is a file's own",
        "segment.py",
        (("            walk, last_offset = self._walk_before(",
          "            return FileWalk(self, (pos, native.OFFSET_UNKNOWN), buffer)\n"
          "            walk, last_offset = self._walk_before("),),
        "lying_input",
        ("derived",),
        quick=3,
    ),
    Bug(
        "a large sequence number is remembered as a small one",
        "store/publication/publication.py",
        (("            self.sequence, self.records, now_ms,",
          "            self.sequence & 0xFFFFFFFF, self.records, now_ms,"),),
        "readable",
        quick=1,
    ),
    *BUGS_OF_HAND_IN,
    *PRODUCER_BUGS,
    *BUGS_OF_COPIES,
    *BUGS_OF_GROUPS,
    *BUGS_OF_COMPACTION,
    *BUGS_OF_FULL_DISKS,
    *BUGS_OF_LIVES,
    *BUGS_OF_SERVICES,
    *BUGS_OF_CANCELLATIONS,
    *BUGS_OF_STORMS,
    *BUGS_OF_JAVA,
    *BUGS_OF_INCARNATIONS,
)  # fmt: skip

COUNTS = {
    "commit": sum(bug.quick > 0 for bug in BUGS),
    "nightly": len(BUGS),
    "release": len(BUGS),
}


def run(count: int, seed: int, tally: Tally) -> None:
    """Hunt `count` bugs, the quick ones first; with their own seeds if all of them are
    quick."""
    _run(sorted(BUGS, key=lambda bug: not bug.quick)[:count], seed, tally)


def run_part(count: int, seed: int, part: Part, tally: Tally) -> None:
    """Hunt the bugs of a part: each bug is in one part, and has the same seed there."""
    span = part.span(min(count, len(BUGS)))
    _run([BUGS[number] for number in span], seed, tally)


def _run(bugs: list[Bug], seed: int, tally: Tally) -> None:
    has_own = all(bug.quick for bug in bugs)

    def hunt(bug: Bug, folder: pathlib.Path) -> tuple[bool, str]:
        return _hunt(bug, folder, bug.quick if has_own else seed)

    hunt_all(bugs, hunt, tally)


def _hunt(bug: Bug, folder: pathlib.Path, seed: int) -> tuple[bool, str]:
    """Whether the method catches the bug in a copy, and its output.

    Raises:
        Skip: no case of the method can be made on this machine.
    """
    number = str(BUGS.index(bug))
    done = run_on_copy(folder, "faults.planted_hunt", number, "--seed", str(seed))
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 1 and last.startswith("caught"):
        return True, last
    if bug.source.suffix == ".c" and -done.returncode in _CRASHES:
        return True, f"{bug.method} crashes: {signal.Signals(-done.returncode).name}"
    if done.returncode == 0 and last.startswith("skipped: "):
        raise Skip(last.removeprefix("skipped: "))
    return False, f"not caught by {bug.method}: {done.stdout[-600:]}"
