"""Commands for people at a terminal: chat, complete, top, collect-env. They are clients of a box like any other."""
