"""Accounts, users, settings and the org's policy."""

from bursar.core.ledger.commands import AddAccount, AddUser, SetPolicy, SetSetting
from bursar.core.refusal import Code
from tests.support.model.state import ModelState
from tests.support.model.values import ModelSetting


class SettingRules(ModelState):
    """Sets up an org."""

    def _on_AddAccount(self, ask: AddAccount) -> Code | None:
        if ask.parent is not None and ask.parent not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if ask.account in self.parents or (ask.parent is None and self.parents):
            return Code.ALREADY_EXISTS
        inherited = "UTC" if ask.parent is None else self.zones[ask.parent]
        self.parents[ask.account] = ask.parent
        self.zones[ask.account] = ask.time_zone or inherited
        return None

    def _on_AddUser(self, ask: AddUser) -> Code | None:
        if ask.user in self.users:
            return Code.ALREADY_EXISTS
        self.users.append(ask.user)
        return None

    def _on_SetSetting(self, ask: SetSetting) -> Code | None:
        """The model has no events: `before` is how often the setting had been set."""
        key = (ask.kind, ask.id)
        known = self.settings.get(key)
        if ask.before == 0:
            if known is not None:
                return Code.ALREADY_EXISTS
            self.settings[key] = ModelSetting(ask.body, 1)
            return None
        if known is None or known.body is None:
            return Code.SETTING_UNKNOWN
        if ask.before is not None and ask.before != known.times:
            return Code.CHANGED_SINCE
        known.body = ask.body
        known.times += 1
        return None

    def _on_SetPolicy(self, ask: SetPolicy) -> Code | None:
        self.policy = ask.policy
        return None
