"""The /v1/responses protocol."""
