"""`browse`: a browser for the terminal, similar to a web UI for Kafka.

`command` checks the path and the terminal, and loads the rest, which needs Textual, an
extra. `catalog`, `window`, `hunt`, `lines` and `payload` read the log and do not use
Textual. Widgets and screens show the results; all reading is done in threads (`work`).
"""
