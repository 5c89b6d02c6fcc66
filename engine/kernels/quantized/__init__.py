"""Linear layers whose weights are int4, int8 or float8 codes with scales."""
