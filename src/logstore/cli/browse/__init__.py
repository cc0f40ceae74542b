"""`browse`: a store in a terminal, for those who know a web UI for Kafka.

`command` checks the path and the terminal, and loads the rest, which needs Textual, an
extra. `catalog`, `window`, `hunt`, `lines` and `payload` know nothing of Textual: they
say what there is to show. The widgets and screens show it, and do all reading in
threads.
"""
