"""What a rank other than 0 does: load its part of the model, then compute each step that rank 0 sends."""

from __future__ import annotations

import logging
import time
from multiprocessing.connection import Connection

from engine.errors import ConfigError, EngineError
from engine.runner.forward_pass import ForwardPass
from engine.runner.model_loading import ModelLoading
from engine.runner.parallel.group import join_group
from engine.runner.parallel.messages import Allocate, Counted, Failed, Join, Reached, Report, Said, decode, encode
from engine.runner.parallel.process import STOP
from engine.runner.parallel.step_bytes import decode_work

logger = logging.getLogger(__name__)

SECOND_S = 1.0  # a sum fails on all ranks when one of them dies: the others speak after that was noticed


def follow(connection: Connection) -> int:
    """Until rank 0 says stop. Returns the exit status; what goes wrong is reported to rank 0."""
    try:
        _follow(connection)
    except EOFError:
        return 0  # rank 0 is gone
    except EngineError as error:
        return _fail(connection, str(error), is_config_error=isinstance(error, ConfigError))
    except Exception as error:
        time.sleep(SECOND_S)
        logger.exception("rank failed")
        return _fail(connection, f"{type(error).__name__}: {error}", is_config_error=False)
    return 0


def _follow(connection: Connection) -> None:
    join = decode(connection.recv_bytes(), Join)
    _send_logs(connection, join.config.log_level)
    forward = _load(connection, join)
    while (data := connection.recv_bytes()) != STOP:
        forward.follow(decode_work(data))


def _load(connection: Connection, join: Join) -> ForwardPass:
    def report(message: Report) -> None:
        connection.send_bytes(encode(message))

    loading = ModelLoading(join.config, lambda phase, percent: None, join.implementation, join.rank)
    report(Reached("started"))
    plan = loading.plan
    group = join_group(
        join.rank,
        join.config.tensor_parallel_size,
        plan.device,
        join.store_fd,
        keeps_order=plan.is_batch_invariant,
    )
    model = loading.load_model(group)
    report(Reached("loaded"))
    report(Counted(loading.count_blocks(model)))
    allocate = decode(connection.recv_bytes(), Allocate)
    forward = loading.make_forward_pass(model, allocate.num_blocks)
    report(Reached("ready"))
    return forward


def _fail(connection: Connection, error: str, *, is_config_error: bool) -> int:
    try:
        connection.send_bytes(encode(Failed(error, is_config_error)))
    except OSError:
        logger.error("%s", error)
    return 1


class _RankHandler(logging.Handler):
    """Lets rank 0 log what this process has to say, in its own format."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._connection.send_bytes(encode(Said(record.name, record.levelno, self.format(record))))
        except OSError:
            self.handleError(record)


def _send_logs(connection: Connection, level: str) -> None:
    """Warnings only, unless somebody looks for a fault: rank 0 says all the rest already."""
    logging.basicConfig(level="DEBUG" if level == "debug" else "WARNING", handlers=[_RankHandler(connection)])
