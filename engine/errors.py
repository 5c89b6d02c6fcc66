"""What can go wrong in the engine, as seen by its caller. Imports nothing.

::

    EngineError
    ├── ConfigError            the configuration or the baked model cannot be served (start fails, one clear line)
    ├── RequestError           this request cannot be run; ``param`` names the field (the engine lives on)
    ├── RankLostError          a process of tensor parallelism ended: the engine cannot go on (a new one can)
    ├── EngineUnavailableError no engine answers on the socket, or it has not finished loading
    └── EngineLostError        the engine went away while it was working on the request: it can be taken up again
"""


class EngineError(Exception):
    """Root of every error that the engine package raises on purpose."""


class ConfigError(EngineError):
    """The engine cannot start like this; the message is one line that names what to change."""


class RequestError(EngineError):
    """One request is impossible (out-of-vocabulary id, longer than the context …); ``param`` is the field's name."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RankLostError(EngineError):
    """A process that shares the model with the engine's own has ended; the message says which and how.

    ``is_own_fault`` is False where it was killed from outside.
    """

    def __init__(self, message: str, *, is_own_fault: bool) -> None:
        super().__init__(message)
        self.is_own_fault = is_own_fault


class EngineUnavailableError(EngineError):
    """Nobody answers on the engine's socket, or the model is still being loaded."""


class EngineLostError(EngineError):
    """The engine died or restarted while the request was in flight; resubmit prompt + output so far to go on."""
