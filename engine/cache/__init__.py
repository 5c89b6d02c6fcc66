"""Which KV blocks hold which tokens: blocks, pool, per-request tables, chained hashes. The bytes are the runner's."""
