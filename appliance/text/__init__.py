"""Text on its way to and from token ids: template, tokenizer, detokenizer, events, parsers."""
