"""Count what a function does in place of timing it."""

import sys
from collections.abc import Callable
from typing import Any


def traced(trace: Callable[..., Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function under `sys.settrace(trace)`, then put back the previous tracer."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
