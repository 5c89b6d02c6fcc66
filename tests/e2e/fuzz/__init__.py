"""Random requests against a running box: ``python -m tests.e2e.fuzz --base-url URL --requests 10000``.

Bodies are made from the box's own /openapi.json (`bodies`) or hold valid schemas, grammars and tools (`grammars`); they
are damaged as bytes (`damage`) and as HTTP (`raw_http`). `campaign` sends them, with attacks on the proxy
between them (`attacks`), and counts what must never happen. What a request may cost is bounded by `limits`.
"""
