"""Hugging Face folders whose weights are quantized already: which kinds we read, and how their tensors become codes.

`schemes` checks config.json's quantization_config and refuses the rest by name; `modules` reads one linear layer of
each kind; `weights` shows a whole folder as `source.Weights`, so that nothing else in bake knows of these formats.
"""
