"""Loading a partition at opening: find the extent of its log, and repair it if needed.

`survey` collects facts and writes nothing; `make_plan` is pure, and has the table of
labelled cases of docs/design.md; `apply` carries out the plan. Recovery never cuts
bytes below the durable point, nor bytes that it does not understand.
"""

from logstore.log.recover.context import RecoveredLog, RecoveryContext
from logstore.log.recover.durable import make_durable
from logstore.log.recover.load import load, record_damage

__all__ = ["RecoveryContext", "RecoveredLog", "load", "make_durable", "record_damage"]
