"""Descriptions of fields that mean the same wherever their name occurs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
