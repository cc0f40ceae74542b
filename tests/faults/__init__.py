"""The fault programme: faults and crashes under which logstore must keep its promises.

Each method is a module with

- ``NAME``, ``UNIT``: its name, and the unit that it counts;
- ``COUNTS``: the number of units for each size;
- ``run(count, seed, tally)``: run `count` units, and report each to `tally`.

``python -m faults`` (by ``make faults``) runs them and prints a table;
``test_faults.py`` runs the smallest size with the other tests.
"""
