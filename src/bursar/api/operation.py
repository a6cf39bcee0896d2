"""Operation: one entry of the table that defines the HTTP API.

Routes, parameters, scope checks, the batch endpoint and the OpenAPI document all come from the
table. A module of `bursar.api.operations` fills its part of it:

    operations = OperationTable("Grants")

    @operations.get("/v1/grants/{id}", name="grants.get", scope=Scope.READ,
                    summary="Get a grant", response=GrantDetail)
    async def get_grant(call: Call, id: Id) -> Response:
        \"\"\"Return a grant with the current state of its credits.\"\"\"

The handler's signature names the parameters: those in braces are in the path, `body` is the JSON
body, all others are in the query. Its docstring is the description that users read.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

from pydantic import TypeAdapter

from bursar.core.ledger.commands import Command
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.responses import Happened

if TYPE_CHECKING:
    from bursar.api.context import Service

BODY: Final = "body"  # the handler's parameter for the JSON body
ORG: Final = "org"  # in `subjects`: the whole org that `org_id`, or else the key, names
PRICE_BOOK: Final = "price_book"  # as ORG; the deployment, for an operator who names no org

Handler: TypeAlias = Callable[..., Awaitable[Any]]  # → Response or CommandResult
ResponseType: TypeAlias = Any  # a WireModel, a union of them, or None


@dataclass(frozen=True, slots=True)
class NameInUrl:
    """In an annotation: the name of a parameter that Python does not allow, such as `from`."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path or in the query of an operation."""

    name: str  # in the URL
    argument: str  # of the handler
    place: Literal["path", "query"]
    adapter: TypeAdapter[Any]
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInput:
    """What a request contributes to a command."""

    org: str
    id: str  # in the path; empty if the path has none
    body: Any
    ids: IdFactory
    user: str  # the spender, if the body does not name one
    capped_key: str | None  # the key of the request, if it has a spend cap


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """How an operation becomes a command of the ledger, and its events become a response.

    `subjects` are pairs of a table and a field of the body (`id`: of the path). The first one
    decides which org the command is for. The key must be allowed to use all of them.
    """

    subjects: tuple[tuple[str, str], ...]
    build: Callable[[CommandInput], Command]
    render: Callable[[str, Any, Happened], WireModel]  # org, command, events
    check: Callable[["Service", Any], None] | None = None  # service, body; raises `CallFailed`


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method and path of the API, what it takes and what it returns."""

    name: str
    method: str
    path: str
    tag: str
    summary: str
    description: str
    handler: Handler
    scope: str | None  # None: no key needed
    response: ResponseType = None
    status: int = 200
    body: Any = None  # the type of the JSON body
    is_body_optional: bool = False
    body_adapter: TypeAdapter[Any] | None = None
    path_parameters: tuple[Parameter, ...] = ()
    query_parameters: tuple[Parameter, ...] = ()
    takes_idempotency_key: bool = False
    takes_if_match: bool = False
    content_types: tuple[str, ...] = ()  # of a response that is not, or not only, JSON
    other_responses: Mapping[int, tuple[str, Any]] = field(default_factory=dict)
    example: Any = None  # of the JSON body
    problems: tuple[str, ...] = ()  # codes besides those that any operation of its kind returns
    is_hidden: bool = False  # not in the OpenAPI document
    command: CommandSpec | None = None

    @property
    def is_open(self) -> bool:
        """Whether the operation can be called without a key."""
        return self.scope is None


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations of one module."""

    tag: str
    _rows: list[Operation] = field(default_factory=list)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._rows)

    def add(self, operation: Operation) -> None:
        """Add an operation."""
        self._rows.append(operation)

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a handler for GET."""
        return self._register("GET", path, options)

    def post(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a handler for POST."""
        return self._register("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a handler for PUT."""
        return self._register("PUT", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a handler for DELETE."""
        return self._register("DELETE", path, options)

    def _register(
        self, method: str, path: str, options: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            described = {"description": inspect.getdoc(handler) or "", "tag": self.tag}
            parts = inspect_handler(handler, path)
            merged = {**described, **parts, **options}
            self._rows.append(Operation(method=method, path=path, handler=handler, **merged))
            return handler

        return register


def inspect_handler(handler: Handler, path: str) -> dict[str, Any]:
    """Derive the parameters and the body of an operation from its handler's signature."""
    places: dict[str, list[Parameter]] = {"path": [], "query": []}
    parts: dict[str, Any] = {}
    _, *parameters = inspect.signature(handler, eval_str=True).parameters.values()
    for parameter in parameters:
        if parameter.name == BODY:
            parts |= describe_body(parameter.annotation)
            continue
        name = _name_in_url(parameter)
        place: Literal["path", "query"] = "path" if f"{{{name}}}" in path else "query"
        is_required = parameter.default is inspect.Parameter.empty
        adapter = TypeAdapter(parameter.annotation)
        places[place].append(Parameter(name, parameter.name, place, adapter, is_required))
    parts["path_parameters"] = tuple(sorted(places["path"], key=lambda it: path.index(it.name)))
    parts["query_parameters"] = tuple(places["query"])
    return parts


def describe_body(type: Any) -> dict[str, Any]:
    """The fields of an operation with a JSON body of a type; a union with None is optional."""
    is_optional = get_origin(type) is UnionType and NoneType in get_args(type)
    return {"body": type, "body_adapter": TypeAdapter(type), "is_body_optional": is_optional}


def _name_in_url(parameter: inspect.Parameter) -> str:
    if get_origin(parameter.annotation) is Annotated:
        for note in get_args(parameter.annotation)[1:]:
            if isinstance(note, NameInUrl):
                return note.name
    return parameter.name
