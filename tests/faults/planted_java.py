"""Planted bugs of the reader in Java, and of what it asks Python."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_JAVA = (
    Bug(
        "zeros are the end of what Java reads",
        "connectors/spark/java/logstore/spark/TaskReader.java",
        (("                if (stop != Decoder.Stop.END) {",
          "                if (stop == Decoder.Stop.ZEROS) {\n"
          "                    closeFile();\n                    continue;\n"
          "                }\n                if (stop != Decoder.Stop.END) {"),),
        "java",
    ),
    Bug(
        "a gap up to the end of a range is believed without a look behind it",
        "connectors/spark/java/logstore/spark/TaskReader.java",
        (("decoder.isPlausible() && decoder.isInOrder(buffer, limit);",
          "decoder.isPlausible();"),),
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
        "connectors/spark/java/logstore/spark/TaskReader.java",
        (("        if (!range.guard.holds() && !stands()) {", "        if (false) {"),),
        "java",
    ),
)  # fmt: skip
