"""Run the fault programme: ``python -m faults --size commit`` prints a table."""

from __future__ import annotations

import argparse
import datetime
import logging
import sys
from collections import Counter

from faults.method import SIZES, Method, Part, Tally, skipped_in_words
from faults.methods import METHODS
from faults.responsible import methods_for


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default=SIZES[0])
    parser.add_argument(
        "--only", action="append", choices=[m.NAME for m in METHODS], metavar="METHOD",
        help="one method; may be given again: " + ", ".join(m.NAME for m in METHODS),
    )  # fmt: skip
    parser.add_argument(
        "--for", action="append", dest="paths", metavar="PATH",
        help="the methods that catch the bugs planted in this file or directory of the"
        " package, such as log/write; may be given again",
    )  # fmt: skip
    parser.add_argument("--count", type=int, help="so many, whatever the size")
    parser.add_argument(
        "--seed", type=int, help="default: 1 for commit; else today's date, yyyymmdd"
    )
    parser.add_argument(
        "--part", type=_part, default=Part(1, 1), metavar="K/N",
        help="part K of N of the size, with cases that no other part has; the parts"
        " of one seed add up to the size",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.seed is None:
        # The checks of a commit are always the same; longer runs take a new seed each
        # day.
        today = datetime.datetime.now(datetime.timezone.utc)
        is_same = options.size == SIZES[0]
        options.seed = 1 if is_same else int(today.strftime("%Y%m%d"))
    only = set(options.only or [])
    for path in options.paths or []:
        names = methods_for(path)
        if not names:
            parser.error(f"no bug is planted in {path}: run all methods")
        only.update(names)
    # Recovery warns of each damage that it repairs; here it repairs hundreds of
    # thousands.
    logging.disable(logging.CRITICAL)
    chosen = [m for m in METHODS if not only or m.NAME in only]
    failed, skipped = 0, Counter[str]()
    print(f"seed {options.seed}")
    print(f"{'method':<18}{'states':>12}  {'of':<22}{'seconds':>8}  failures")
    for method in chosen:
        count = options.count or method.COUNTS[options.size]
        tally = _run(method, count, options.seed, options.part)
        failed += len(tally.failures)
        skipped += tally.skipped
        line = f"{method.NAME:<18}{tally.done:>12,}  {method.UNIT:<22}"
        print(f"{line}{tally.seconds:>8.0f}  {len(tally.failures)}", flush=True)
        for why, number in sorted(tally.skipped.items()):
            print(f"    {number:,} skipped: {why}")
        for note in tally.notes:
            print(f"    {note}")
        for what in tally.failures[:20]:
            print(f"    FAIL {what}")
        if len(tally.failures) > 20:
            print(f"    and {len(tally.failures) - 20} more")
    part = f", part {options.part}" if options.part.of_parts > 1 else ""
    words = [f"{failed} failures", skipped_in_words(skipped)]
    words += [f"size {options.size}", f"seed {options.seed}{part}"]
    print(", ".join(filter(None, words)))
    return 1 if failed else 0


def _part(text: str) -> Part:
    try:
        return Part.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(method: Method, count: int, seed: int, part: Part) -> Tally:
    tally = Tally(part.count(count), show=True)
    run_part = getattr(method, "run_part", None)
    if part.of_parts > 1 and run_part is not None:
        run_part(count, seed, part, tally)
    else:
        method.run(tally.total, part.seed(seed), tally)
    tally.end()
    return tally


if __name__ == "__main__":
    sys.exit(main())
