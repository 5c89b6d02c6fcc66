"""The page for people at ``/``: how the box is, what it serves, its load, a chat. It holds no data: it asks the API."""
