"""Planted bugs about copies: snapshots, hard links, the first opening."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_COPIES = (
    Bug(
        "a snapshot leaves a broker's log of its cluster behind",
        "store/copy/snapshot.py",
        (("        self._write_cluster(root)\n", ""),),
        "copies",
        quick=1,
    ),
    Bug(
        "a snapshot leaves a broker's first settings behind",
        "store/copy/cut.py",
        (("    layout.CLUSTER_BOOTSTRAP,\n", ""),),
        "copies",
    ),
    Bug(
        "a reset in a copy that was only read goes from above the end of the log",
        "group/resets.py",
        (("    commit = lowered_commit(commit, lowered_in_copy(store))\n",
          "    _ = lowered_commit, lowered_in_copy\n"),),
        "copies",
    ),
    Bug(
        "a snapshot reads the positions of groups after the ends of logs",
        "store/copy/cut.py",
        (("    files |= _contents(root, [layout.PRODUCERS, layout.UNKNOWN])\n",
          "    files |= _contents(root, [layout.PRODUCERS, layout.UNKNOWN])\n"
          "    groups = {name: _whole_batches(root, name) for name in "
          "_group_files(root)}\n"),),
        "copies",
        quick=1,
    ),
    Bug(
        "a snapshot copies the last segment as far as it has grown meanwhile",
        "store/copy/snapshot.py",
        (("        self._copy(file.fd, size, to, name)\n",
          "        self._copy(file.fd, info.size, to, name)\n"),),
        "copies",
        quick=1,
    ),
    Bug(
        "a snapshot has the publications from after the ends of logs",
        "store/copy/cut.py",
        (("        remembered(ledger) if ledger else None,\n",
          "        remembered(publisher.ledger()) if ledger else None,\n"),
         ("    files |= _contents(root, [layout.PRODUCERS, layout.UNKNOWN])\n",
          "    files |= _contents(root, [layout.PRODUCERS, layout.UNKNOWN])\n"
          "    context.files.now_ms()\n")),
        "copies",
    ),
    Bug(
        "a file with several names is written to in place",
        "io/directory.py",
        (("                if links == 1:\n",
          "                if links:\n"),),
        "copies",
        quick=1,
    ),
    Bug(
        "positions above the end of a copied log stay",
        "store/copy/copies.py",
        (("        failed = lower(root, publisher, lowered_to, "
          "topics.writers.record)\n",
          "        failed = {}\n"),),
        "copies",
    ),
    Bug(
        "published positions above the end of a copied log stay",
        "group/consumer/lowering.py",
        (("        outcomes.append(_lower_published(root, publisher, "
          "lowered_to))\n",
          "        _ = _lower_published\n"),),
        "copies",
    ),
    Bug(
        "a copy that is only read has the positions of the original",
        "group/consumer/positions.py",
        (("            commit = lowered_commit(commit, lowered_to)\n",
          "            _ = lowered_to\n"),),
        "copies",
    ),
    Bug(
        "a copy that is only read has the published positions of the original",
        "group/consumer/transaction.py",
        (("        return last.sequence, {**positions, **lowered}\n",
          "        return last.sequence, {**positions, **dict.fromkeys(())}\n"),),
        "copies",
    ),
    Bug(
        "what a copy remembers is taken for what it has",
        "store/lifetime.py",
        (("                mark_unknown(context, topics, "
          "publishing.publications)\n", ""),),
        "copies",
    ),
)  # fmt: skip
