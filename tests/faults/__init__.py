"""The fault programme: what logstore is put through to show that it keeps its promises.

Each method is a module with

- ``NAME``, ``UNIT``: what it is called, and what it counts;
- ``COUNTS``: how many of them for each size;
- ``run(count, seed, tally)``: do so many, and tell `tally` of each.

``python -m faults`` (by ``make faults``) runs them and prints a table;
``test_faults.py`` runs the smallest size with the other tests.
"""
