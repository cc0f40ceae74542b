"""Run the fault programme: ``python -m faults --size commit`` prints a table."""

from __future__ import annotations

import argparse
import datetime
import logging
import sys

from faults.method import SIZES, Method, Tally
from faults.methods import METHODS


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default=SIZES[0])
    parser.add_argument(
        "--only", action="append", choices=[m.NAME for m in METHODS], metavar="METHOD",
        help="one method; may be given again: " + ", ".join(m.NAME for m in METHODS),
    )  # fmt: skip
    parser.add_argument("--count", type=int, help="so many, whatever the size")
    parser.add_argument(
        "--seed", type=int, help="default: 1 for commit; else today's date, yyyymmdd"
    )
    options = parser.parse_args(arguments)
    if options.seed is None:
        # The checks of a commit are the same for everybody; what has more time looks
        # where nobody has looked.
        today = datetime.datetime.now(datetime.timezone.utc)
        is_same = options.size == SIZES[0]
        options.seed = 1 if is_same else int(today.strftime("%Y%m%d"))
    # Recovery warns of each damage that it mends; here it mends hundreds of thousands.
    logging.disable(logging.CRITICAL)
    chosen = [m for m in METHODS if not options.only or m.NAME in options.only]
    failed = 0
    print(f"seed {options.seed}")
    print(f"{'method':<18}{'states':>12}  {'of':<22}{'seconds':>8}  failures")
    for method in chosen:
        tally = _run(method, options.count or method.COUNTS[options.size], options.seed)
        failed += len(tally.failures)
        line = f"{method.NAME:<18}{tally.done:>12,}  {method.UNIT:<22}"
        print(f"{line}{tally.seconds:>8.0f}  {len(tally.failures)}", flush=True)
        for note in tally.notes:
            print(f"    {note}")
        for what in tally.failures[:20]:
            print(f"    FAIL {what}")
        if len(tally.failures) > 20:
            print(f"    and {len(tally.failures) - 20} more")
    print(f"{failed} failures, size {options.size}, seed {options.seed}")
    return 1 if failed else 0


def _run(method: Method, count: int, seed: int) -> Tally:
    tally = Tally(count, show=True)
    method.run(count, seed, tally)
    tally.end()
    return tally


if __name__ == "__main__":
    sys.exit(main())
