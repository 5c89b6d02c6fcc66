"""Random requests against a running box: ``python -m tests.e2e.fuzz --base-url URL --requests 10000``.

Bodies are made from the box's own /openapi.json (`bodies`), damaged as bytes (`damage`) and as HTTP (`raw_http`), and
sent by `campaign`, which counts what must never happen. What a request may cost is bounded by `limits`.
"""
