"""Command line, settings and supervision, without starting a box."""
