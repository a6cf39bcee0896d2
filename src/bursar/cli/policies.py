"""Reads a pool's policy from a file, for `pools policy set` and `simulate --rules`."""

import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bursar.cli.api_command import UsageError
from bursar.core.scheduling.model.policy_file import (
    SECTIONS,
    PolicyFileError,
    parse_policy,
    require_mapping,
)


def load_policy(file: Path) -> dict[str, Any]:
    """Read and validate a policy file."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        content = require_mapping(yaml.safe_load(text), "the file")
        policy = {name: content[name] for name in SECTIONS if name in content}
        parse_policy(policy)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, PolicyFileError) as error:
        raise UsageError(f"{file}: {error}") from None
    if not policy:
        raise UsageError(f"{file}: it contains none of {', '.join(SECTIONS)}")
    return policy
