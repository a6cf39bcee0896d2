"""All groups of a pool's share tree. A group is made when a path first names it."""

from collections.abc import Iterator

from bursar.core.refusal import invariant
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.scheduling.order.share_group import ShareGroup


class ShareGroups:
    """The groups by path, and the limits outside the tree by name."""

    def __init__(self, policy: PoolPolicy) -> None:
        self.root = ShareGroup((), "", None, Share())
        self.users: dict[Path, ShareGroup] = {}
        self.limits: dict[str, ShareGroup] = {}  # ceilings outside the tree
        self._shares = dict(policy.shares)
        self._limit_shares = dict(policy.limits)

    def user_group(self, path: Path) -> ShareGroup:
        """The group of a user. It is made if it is new."""
        user = self.users.get(path)
        if user is None:
            user = self.users[path] = self._make_user(path)
        return user

    def find_group(self, path: Path) -> ShareGroup | None:
        """The group at a path, of a user or above; None if no job has named it."""
        if path in self.users:
            return self.users[path]
        group: ShareGroup | None = self.root
        for name in path:
            group = group and group.children.get(name + "/")
        return group

    def limits_of(self, job: Job) -> list[ShareGroup]:
        """The ceilings outside the tree that count a job."""
        return [self._limit(name) for name in job.limit_names]

    def all_groups(self) -> Iterator[ShareGroup]:
        """All groups of the tree, each before its children."""
        return _descendants(self.root)

    def set_shares(self, shares: dict[Path, Share]) -> None:
        """Set the shares of groups, present or future."""
        self._shares.update(shares)
        for path, share in shares.items():
            if group := self.find_group(path):
                if group.is_busy and group.parent is not None:
                    group.parent.busy_weight += share.weight - group.weight
                group.set_share(share)

    def set_limit(self, name: str, share: Share) -> None:
        """Set a ceiling outside the tree."""
        self._limit_shares[name] = share
        if name in self.limits:
            self.limits[name].set_share(share)

    def _make_user(self, path: Path) -> ShareGroup:
        group = self.root
        for depth in range(1, len(path) + 1):
            ends = ("", "/") if depth == len(path) else ("/", "")
            name, other = (path[depth - 1] + end for end in ends)
            # As both, user and account, it would have its floor and its ceiling twice.
            invariant(other not in group.children, "a user has others below it", path=path)
            child = group.children.get(name)
            if child is None:
                share = self._shares.get(path[:depth], Share())
                child = group.children[name] = ShareGroup(path[:depth], name, group, share)
            group = child
        return group

    def _limit(self, name: str) -> ShareGroup:
        limit = self.limits.get(name)
        if limit is None:
            share = self._limit_shares.get(name, Share())
            limit = self.limits[name] = ShareGroup((name,), name, None, share)
            limit.is_limit = True
        return limit


def _descendants(group: ShareGroup) -> Iterator[ShareGroup]:
    yield group
    for child in group.children.values():
        yield from _descendants(child)
