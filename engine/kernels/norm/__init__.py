"""RMSNorm, alone or with the addition to the residual stream before it."""
