"""Loading a partition at opening: find the extent of its log, and repair it if needed.

It follows the table of labelled cases in docs/design.md, with the same labels. Recovery
never cuts bytes below the durable point, nor bytes that it does not understand. The
steps are `Names`, `Segments` and `End`; they share their findings in a `Case`.
"""

from logstore.log.recover.context import Case, RecoveredLog
from logstore.log.recover.durable import make_durable
from logstore.log.recover.leftovers import Names
from logstore.log.recover.load import load

__all__ = ["Case", "RecoveredLog", "Names", "load", "make_durable"]
