"""Unmodified clients, each run by a script of its own in the environment that `setup.sh` makes."""
