"""Measuring: `breadbox bench serve`, `latency`, `throughput`, `startup` and `compare`.

`command` has the table of the five. The HTTP side (`http_client`, `load`, `result`, `summary`) is light, since it
shares the machine with the server that it measures, and needs nothing beyond what a box needs at run time. Only
`in_process` loads an engine.
"""
