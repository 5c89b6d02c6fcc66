"""API keys: the file that holds them, who a presented key is, and what each may do and has used."""
