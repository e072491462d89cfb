"""What a worker's process does inside a contender's environment: requests in, replies out."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Reply = dict[str, Any]


def answer_requests(answer: Callable[..., Reply]) -> None:
    """Answer requests on stdin with replies on stdout, one JSON object a line, until the input closes.

    What a library prints goes to stderr instead.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(**json.loads(line))
        except Exception as error:  # a contender's failure belongs in the table
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def versions(packages: tuple[str, ...]) -> Reply:
    return {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # imported from a source tree
        return "not packaged"
