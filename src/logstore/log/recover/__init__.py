"""Loading a partition at opening: what its log is, and what has to be mended.

It follows the table of labelled cases in docs/design.md, with the same labels. Nothing
below the durable point is ever cut, nor anything that is merely not understood. The
steps are `Names`, `Segments` and `End`; what they have found so far they share in a
`Case`.
"""

from logstore.log.recover.context import Case, Loaded
from logstore.log.recover.durable import make_durable
from logstore.log.recover.leftovers import Names
from logstore.log.recover.load import load

__all__ = ["Case", "Loaded", "Names", "load", "make_durable"]
