"""A protocol's request becomes a chat request; what is wrong with it must be told in the protocol's own field names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from appliance.errors import InvalidRequestError

FieldNames = Sequence[tuple[re.Pattern[str], str]]


def make_field_names(names: Mapping[str, str]) -> FieldNames:
    """From chat's field (a regular expression for the beginning of its path) to the protocol's; the first one wins."""
    return [(re.compile(rf"{chat}(?![a-z_])"), own) for chat, own in names.items()]


@contextmanager
def renamed_fields(names: FieldNames) -> Iterator[None]:
    """Errors of the block leave with the protocol's names in ``param`` and at the beginning of the message."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param is not None:
            _rename(error, error.param, names)
        raise


def _rename(error: InvalidRequestError, param: str, names: FieldNames) -> None:
    for pattern, own in names:
        renamed, count = pattern.subn(own, param, count=1) if pattern.match(param) else (param, 0)
        if count:
            error.param = renamed
            error.message = error.message.replace(param, renamed, 1)
            return
