"""Log lines as people and as programs read them."""

from __future__ import annotations

import json
import logging
import logging.config
import sys

import pytest

from appliance.logs import FORMATTERS, log_facts, logging_config
from appliance.supervisor.log_pipes import _message_of

FACTS = {"request_id": "a b", "status": 200, "ttft_s": 0.01234567, "duration_s": 12.5, "key": None, "is_gone": True}


def format_with(name: str, record: logging.LogRecord) -> str:
    return FORMATTERS[name]("api").format(record)  # type: ignore[call-arg]


@pytest.fixture
def record() -> logging.LogRecord:
    records: list[logging.LogRecord] = []
    logger = logging.getLogger("tests.logs")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    log_facts(logger, logging.INFO, "request", FACTS)
    log_facts(logger, logging.DEBUG, "never", FACTS)
    logger.removeHandler(handler)
    (record,) = records
    return record


def test_text(record: logging.LogRecord) -> None:
    line = format_with("text", record)
    assert line.endswith(
        ' tests.logs: request request_id="a b" status=200 ttft_s=0.01235 duration_s=12.500 is_gone=True'
    )
    assert " INFO    api[" in line


def test_json(record: logging.LogRecord) -> None:
    line = json.loads(format_with("json", record))
    assert line.items() >= {"message": "request", "program": "api", "level": "INFO", "status": 200}.items()
    assert line["request_id"] == "a b"
    assert "key" not in line
    assert line["time"].count(":") == 2


def test_json_has_exceptions_on_one_line() -> None:
    try:
        raise ValueError("oh\nno")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it failed", None, sys.exc_info())
    line = format_with("json", record)
    assert "\n" not in line
    assert "ValueError: oh\nno" in json.loads(line)["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_reason_of_an_end_is_found_in_both(log_format: str) -> None:
    record = logging.LogRecord("engine", logging.ERROR, __file__, 1, "cannot start error=%s", ("no memory",), None)
    assert _message_of(format_with(log_format, record).encode()) == "cannot start error=no memory"


def test_the_configuration_is_one_that_logging_takes() -> None:
    for log_format in FORMATTERS:
        config = logging_config("info", "api", log_format)
        logging.config.DictConfigurator(config).configure_formatter(config["formatters"]["line"])
