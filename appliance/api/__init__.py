"""The HTTP front end: one folder a protocol, one file a small route. The only place that knows FastAPI and pydantic."""
