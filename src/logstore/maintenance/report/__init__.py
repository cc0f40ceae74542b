"""A report on a store as one HTML page, and as plain values.

`collect` gathers facts through `verify`, `doctor` and a read-only store; `attention`
and `broker` judge them; `page` and the modules it uses draw them. Nothing is changed.
"""

from logstore.maintenance.report.report import Report, report

__all__ = ["Report", "report"]
