"""Finds the operation for a method and a path, in a tree of path segments."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from bursar.api.operation import Operation

ANY: Final = "{}"  # the branch for a parameter


class RouteMatch(NamedTuple):
    """An operation, and the values of its path parameters in order."""

    operation: Operation
    values: tuple[str, ...]


class _Node:
    __slots__ = ("branches", "operations")

    def __init__(self) -> None:
        self.branches: dict[str, _Node] = {}
        self.operations: dict[str, Operation] = {}


class RouteTable:
    """All operations by their paths. A fixed segment goes before a parameter."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        self._fixed: dict[tuple[str, str], RouteMatch] = {}  # paths without parameters
        for operation in operations:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        node = self._root
        for segment in operation.path.split("/"):
            key = ANY if segment.startswith("{") else segment
            node = node.branches.setdefault(key, _Node())
        assert operation.method not in node.operations, f"{operation.name}: the path is taken"
        node.operations[operation.method] = operation
        if not operation.path_parameters:
            self._fixed[operation.method, operation.path] = RouteMatch(operation, ())

    def find(self, method: str, path: str) -> RouteMatch | None:
        """The operation of a method and path; None if there is none."""
        if (fixed := self._fixed.get((method, path))) is not None:
            return fixed
        match = _find(self._root, path.split("/"), 0)
        if match is None:
            return None
        operation = match[0].operations.get(method)
        return None if operation is None else RouteMatch(operation, match[1])

    def methods(self, path: str) -> list[str]:
        """The methods that a path has."""
        match = _find(self._root, path.split("/"), 0)
        return [] if match is None else sorted(match[0].operations)


def _find(node: _Node, segments: list[str], at: int) -> tuple[_Node, tuple[str, ...]] | None:
    if at == len(segments):
        return (node, ()) if node.operations else None
    segment = segments[at]
    fixed = node.branches.get(segment)
    if fixed is not None and segment != ANY:
        rest = _find(fixed, segments, at + 1)
        if rest is not None:
            return rest
    anything = node.branches.get(ANY)
    if anything is None or not segment:
        return None
    rest = _find(anything, segments, at + 1)
    return None if rest is None else (rest[0], (segment, *rest[1]))
