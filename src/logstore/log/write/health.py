"""The reasons why a log takes no appends."""

from __future__ import annotations

from collections.abc import Callable

from logstore import _native as native
from logstore._native.locks import Signal, logger
from logstore.errors import LogStoreError, SyncFailedError, again
from logstore.log.write.context import LogContext

__all__ = ["Health"]


class Health(native.HealthFields):
    """Whether a log takes appends, and why not. The log's lock guards it.

    Invariant: `is_blocked` if there is a reason to refuse appends, or an undo is due.
    It may also be set without one: `check` finds out.

    Attributes:
        damage: found by recovery, for good.
        failed: a sync or an undo has failed, for good: the first cause.
        closed: the writer was closed.
        suspended: appends are refused for now.
        release: called before the next append outside of a publication: the journal of
            publications defines the end of the log. Raises the reason if nothing may be
            appended.
        is_poisoned: a call was interrupted, and no call can undo it.
        is_torn: a call was interrupted: readers finish it first (`LogWriter.settle`).
        is_unheard: only a background thread has seen the failure so far.
    """

    __slots__ = (
        "_appended",
        "_context",
        "closed",
        "damage",
        "failed",
        "is_unheard",
        "release",
        "suspended",
    )

    def __init__(
        self,
        context: LogContext,
        damage: LogStoreError | None,
        appended: Signal,
    ) -> None:
        self._context = context
        self._appended = appended
        self.damage = damage
        self.failed: LogStoreError | None = None
        self.closed: LogStoreError | None = None
        self.suspended: LogStoreError | None = None
        self.release: Callable[[], None] | None = None
        self.is_poisoned = False
        self.is_torn = False
        self.is_unheard = False
        self.is_blocked = damage is not None

    @property
    def is_intact(self) -> bool:
        """Whether the whole log is known to be readable and can be made durable."""
        return self.failed is None and self.damage is None

    @property
    def has_ended(self) -> bool:
        """Whether nothing will ever be appended or synced again."""
        return bool(self.closed or self.failed or self.damage)

    @property
    def is_only_damaged(self) -> bool:
        """Whether damage is the one reason: then records may still be deleted."""
        is_other = self.closed or self.suspended or self.failed
        return self.damage is not None and not is_other

    def check(self, repair: Callable[[], None]) -> None:
        """Raise the reason if nothing may be written.

        Args:
            repair: finishes the work of an interrupted call, and may fail.
        """
        if self.closed is not None:
            raise again(self.closed)
        if self.suspended is not None:
            raise again(self.suspended)
        if self.failed is None and self.damage is None:
            repair()
        if self.failed is not None:
            self.is_unheard = False
            raise SyncFailedError(
                str(self.failed),
                errno=getattr(self.failed, "errno", None),
                path=getattr(self.failed, "filename", None),
                action="append to",
            ) from self.failed
        if self.damage is not None:
            raise again(self.damage)

    def fail(self, error: SyncFailedError) -> SyncFailedError:
        """Refuse all appends from now on; returns the error. The first one counts."""
        if self.failed is None:
            self.failed = again(error)
            self.is_blocked = True
            logger.error("%s takes no more appends: %s", self._context.name, error)
        self.wake()
        return error

    def refuse(self, reason: LogStoreError) -> None:
        """Refuse appends, as if recovery had found damage: they raise `reason`."""
        self.damage = self.damage or reason
        self.is_blocked = True

    def poison(self) -> SyncFailedError:
        """A call was interrupted at a point that cannot be undone: write no more."""
        context = self._context
        return self.fail(
            SyncFailedError(
                f"an earlier call on {context.name} was interrupted half-way; "
                "acknowledged records can be read. Open the store again to "
                "append.",
                path=context.directory.path,
                action="append to",
            )
        )

    def cannot_undo(self, text: str) -> None:
        """A change of this log was not undone, as `text` says: write no more."""
        path = self._context.directory.path
        self.fail(SyncFailedError(text, path=path, action="undo"))

    def wake(self) -> None:
        """Wake the threads that wait for records."""
        self._appended.set()
