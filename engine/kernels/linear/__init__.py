"""Linear layers with their RMSNorm prologue and SwiGLU or residual epilogue."""
