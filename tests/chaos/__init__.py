"""Faults against a box under load, and what must come back all the same.

`python -m tests.chaos` kills, stops and starves what it finds at random while `load` asks; `soak` looks for leaks and
`overload` for a box that promises more than it can do. The tests here are their short forms.
"""
