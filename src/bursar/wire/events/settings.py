"""Settings of an org in its events: keys, webhooks, alerts, rules, quotas."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from bursar.core.alerts import ALERT
from bursar.wire.alerts import describe_figures
from bursar.wire.times import instant_text

# Fields whose names in the database lack a unit or differ from those of the API.
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "account": "account_id",
        "user": "user_id",
        "rule": "rule_id",
        "webhook": "webhook_id",
        "types": "events",
        "below": "below_micros",
        "overlap_s": "overlap_seconds",
        "rate_per_s": "rate_per_second",
    }
)


def describe_setting(kind: str, body: str) -> dict[str, Any]:
    """A stored setting with the names and units of the API, without the hashes of secrets."""
    stored: dict[str, Any] = json.loads(body)
    fields: dict[str, Any] = {}
    for name, value in stored.items():
        if name.endswith("hash"):
            continue
        if name == "cap":
            fields["spend_cap_micros"], fields["spend_cap_every"] = value or (None, None)
        elif name == "figures" and kind == ALERT:
            fields[name] = describe_figures(value)
        else:
            is_instant = name.endswith("_at") and isinstance(value, int)
            fields[_NAMES.get(name, name)] = instant_text(value) if is_instant else value
    return fields
