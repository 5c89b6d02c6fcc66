"""Mixtures of experts: routing, and the experts' SwiGLU over rows grouped by expert."""
