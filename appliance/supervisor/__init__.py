"""The processes of a box: run directory, rendered configuration, supervisord, and the parent that watches over it."""
