"""The engine: token ids in, token ids out. No environment, no HTTP, no text; see the README's architecture page."""
