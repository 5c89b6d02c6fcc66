"""Loaded by schemathesis (SCHEMATHESIS_HOOKS): keeps its requests short."""

from __future__ import annotations

from typing import Any

import schemathesis

from tests.e2e.fuzz.limits import limit


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A body without a limit would be answered with all that the context has room for."""
    case.body = limit(case.body)
