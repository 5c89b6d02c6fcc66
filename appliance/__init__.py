"""The appliance: all of Breadbox that is not the model: HTTP, text, command line, processes. Never imports torch."""

__version__ = "0.1.0"
