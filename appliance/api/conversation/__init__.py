"""A conversation on its way to the engine: what chat, responses and messages share. Each brings its request into the
shape of `schemas.ChatRequest`, starts it with `job.start_chat` and prints the events in its own words."""
