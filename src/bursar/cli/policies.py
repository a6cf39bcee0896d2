"""Reads a pool's policy from a file, for `pools policy set` and `simulate --rules`."""

import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bursar.cli.api_command import Misused
from bursar.core.scheduling.model.policy_file import (
    SECTIONS,
    PolicyFileError,
    parse_policy,
    require_mapping,
)


def policy_words(file: Path) -> dict[str, Any]:
    """Read and validate a policy file."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        given = require_mapping(yaml.safe_load(text), "the file")
        words = {name: given[name] for name in SECTIONS if name in given}
        parse_policy(words)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, PolicyFileError) as error:
        raise Misused(f"{file}: {error}") from None
    if not words:
        raise Misused(f"{file}: it contains none of {', '.join(SECTIONS)}")
    return words
