"""Planted bugs about full disks: a call does not free space, or loses records."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_FULL_DISKS = (
    Bug(
        "a file whose longer name does not fit is not deleted",
        "io/full_disk.py",
        (("        if not is_disk_full(error):\n"
          "            raise\n"
          "        directory.unlink(name)\n",
          "        raise\n"),),
        "full",
        quick=3,
    ),
    Bug(
        "a truncation needs room for a second state file",
        "log/write/truncation.py",
        (("is_truncating=True, in_place=True)", "is_truncating=True)"),),
        "full",
        quick=3,
    ),
    Bug(
        "a state file that is changed in place keeps the end of the old one",
        "io/full_disk.py",
        (("            files.truncate(fd, len(data))\n"
          "            files.sync(fd)\n",
          "            files.sync(fd)\n"),),
        "full",
        quick=10,
    ),
)  # fmt: skip
