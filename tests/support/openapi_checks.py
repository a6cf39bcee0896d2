"""What the OpenAPI description says of answers; all that tests get are held against it."""

import re
from copy import deepcopy
from typing import Any, Final

import httpx2
import schemathesis
from schemathesis.schemas import BaseSchema

from bursar.api.openapi import describe
from bursar.api.operations import OPERATIONS

DESCRIPTION: Final[dict[str, Any]] = describe(OPERATIONS)


def new_schema() -> Any:
    """The description, to make requests of.

    What it does not allow may be refused before anybody looks at it: an address that is too long.
    """
    schema = schemathesis.openapi.from_dict(deepcopy(DESCRIPTION), config=schemathesis.Config())
    refused = schema.config.checks.negative_data_rejection
    refused.expected_statuses = [*refused.expected_statuses, "414", "431"]
    return schema


_SCHEMA: Final[BaseSchema] = new_schema()
_PATHS: Final = {
    path: re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))) for path in _SCHEMA
}


def check(answer: httpx2.Response) -> None:
    """Hold an answer against what is described; paths and methods that are not have no say."""
    asked = answer.request
    for path, pattern in _PATHS.items():
        if pattern.fullmatch(asked.url.path) and asked.method.lower() in DESCRIPTION["paths"][path]:
            if answer.status_code != 304 and isinstance(asked.stream, httpx2.ByteStream):
                answer.read()
                _SCHEMA[path][asked.method].validate_response(answer)
            return
