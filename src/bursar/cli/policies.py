"""Reads a pool's policy from a file, for `pools policy set` and `simulate --rules`."""

import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bursar.cli.api_command import Misused
from bursar.core.scheduling.model.policy_file import PARTS_OF_A_POLICY, Wrong, mapping, policy_of


def policy_words(file: Path) -> dict[str, Any]:
    """Read and validate a policy file."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        given = mapping(yaml.safe_load(text), "the file")
        words = {name: given[name] for name in PARTS_OF_A_POLICY if name in given}
        policy_of(words)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, Wrong) as error:
        raise Misused(f"{file}: {error}") from None
    if not words:
        raise Misused(f"{file}: it contains none of {', '.join(PARTS_OF_A_POLICY)}")
    return words
