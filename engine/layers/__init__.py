"""What models are composed of: parameters bound to ops. No model knows an implementation; no layer knows a model."""
