"""Planted bugs of the reader in Java, of its requests to Python, and of its handling of
logs that other programs write."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_JAVA = (
    Bug(
        "zeros are the end of what Java reads",
        "connectors/spark/pyspark_logstore/jvm/java/logstore/spark/TaskReader.java",
        (("                if (stop != Decoder.Stop.END) {",
          "                if (stop == Decoder.Stop.ZEROS) {\n"
          "                    closeFile();\n                    continue;\n"
          "                }\n                if (stop != Decoder.Stop.END) {"),),
        "java",
    ),
    Bug(
        "a gap up to the end of a range is believed without a look behind it",
        "connectors/spark/pyspark_logstore/jvm/java/logstore/spark/TaskReader.java",
        (("decoder.isPlausible(buffer, rows) && decoder.isInOrder(buffer, limit);",
          "decoder.isPlausible(buffer, rows);"),),
        "java",
    ),
    Bug(
        "Python reads only what Java has not delivered",
        "connectors/spark/pyspark_logstore/jvm/plans.py",
        (("(task.ranges[number],)",
          "(dataclasses.replace(task.ranges[number], start=offset),)"),),
        "java",
    ),
    Bug(
        "a time index of a broker is believed",
        "index.py",
        (("                    if self.entry(slot)[0] != largest:\n"
          "                        return\n", ""),),
        "java",
    ),
    Bug(
        "Java believes its plan though the log has changed",
        "connectors/spark/pyspark_logstore/jvm/java/logstore/spark/TaskReader.java",
        (("        if (!range.guard.holds() && !stands()) {", "        if (false) {"),),
        "java",
    ),
    Bug(
        "the log of a broker may have no gaps",
        "log/recover/apply.py",
        (("is_contiguous=state is not None and state.is_contiguous",
          "is_contiguous=state is None or state.is_contiguous"),),
        "java",
    ),
)  # fmt: skip
