"""The hand-over of a directory between logstore and a Kafka broker.

`check_handover` reads a directory that is about to change hands, and changes nothing.
Its statements about a broker were observed: tests/interop/test_handover.py starts a
broker on a directory for each finding. docs/cli.md names what was not seen with each
release.
"""

from logstore.maintenance.handover.check import check_handover
from logstore.maintenance.handover.report import HandoverFinding, HandoverReport

__all__ = ["HandoverFinding", "HandoverReport", "check_handover"]
