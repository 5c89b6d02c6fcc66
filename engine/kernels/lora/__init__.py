"""Low-rank adapters, many at once: each row of a step may use another one."""
