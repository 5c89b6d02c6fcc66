"""The few requests that the doctor makes, with the standard library only."""

from __future__ import annotations

import email.utils
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from appliance.doctor.evidence import Probe

_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 120.0
_APART_S = 0.001  # pieces that arrive closer to each other came together


@dataclass(frozen=True)
class Answer:
    """Status, body and the moment (by the answer's Date, seconds since the epoch) of one answer."""

    status: int
    text: str
    date_s: float | None


class BoxClient:
    """Asks one box. Raises OSError where it cannot be reached."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # What the environment says of proxies is meant for the internet.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Answer:
        """Whatever the status."""
        request = urllib.request.Request(self._url + path, headers=self._headers)  # noqa: S310 - the operator's URL
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return _read(response.status, response)
        except urllib.error.HTTPError as error:
            with error:
                return _read(error.code, error)
        except urllib.error.URLError as error:
            raise OSError(f"{self._url} cannot be reached: {error.reason}") from None
        except http.client.HTTPException as error:
            raise OSError(f"{self._url} does not speak HTTP: {error!r}") from None

    def probe(self, model: str, num_tokens: int) -> Probe:
        """Ask for a small stream and note when its pieces arrive."""
        body = {"model": model, "prompt": "The", "max_tokens": num_tokens, "temperature": 0, "stream": True}
        request = urllib.request.Request(  # noqa: S310
            f"{self._url}/v1/completions",
            data=json.dumps(body | {"ignore_eos": True}).encode(),
            headers=self._headers | {"Content-Type": "application/json", "Accept-Encoding": "identity"},
        )
        started = time.monotonic()
        try:
            with self._opener.open(request, timeout=_PROBE_TIMEOUT_S) as response:
                pieces = [(time.monotonic() - started, data) for data in _pieces(response)]
                headers = {name.lower(): value for name, value in response.headers.items()}
        except (OSError, http.client.HTTPException) as error:
            return Probe(error=str(error))
        return _make_probe(pieces, headers)


def _read(status: int, response: Any) -> Answer:
    date = email.utils.parsedate_to_datetime(response.headers["Date"]) if response.headers["Date"] else None
    return Answer(status, response.read().decode(errors="replace"), date.timestamp() if date else None)


def _pieces(response: Any) -> Iterator[bytes]:
    while data := response.read1(1 << 16):
        yield data


def _make_probe(pieces: list[tuple[float, bytes]], headers: dict[str, str]) -> Probe:
    arrivals: list[float] = []
    last = float("-inf")
    for at_s, _ in pieces:
        if at_s - last > _APART_S:
            arrivals.append(at_s)
        last = at_s
    text = b"".join(data for _, data in pieces)
    is_complete = text.rstrip().endswith(b"data: [DONE]")
    return Probe(tuple(arrivals), text.count(b"data: {"), headers, is_complete, None if pieces else "it was empty")
