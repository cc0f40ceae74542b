"""The known releases of Kafka's brokers and tools, and the highest feature levels that
each of them supports."""

from __future__ import annotations

from typing import Final

__all__ = [
    "METADATA_VERSION",
    "NEWEST",
    "RELEASES",
    "first_release",
    "highest_level",
    "metadata_version",
]

# In ascending order, as numbers and also as strings.
RELEASES: Final = ("2.8", "3.9", "4.2", "4.3", "4.4")
NEWEST: Final = RELEASES[-1]
METADATA_VERSION: Final = "metadata.version"

# The highest level of each feature that a KRaft broker of a release starts with. A
# feature not listed is unknown to the release. 2.8 has no features of this kind.
_GROUPS: Final = {
    "transaction.version": 2,
    "group.version": 1,
    "eligible.leader.replicas.version": 1,
    "share.version": 1,
    "streams.version": 1,
}
_LEVELS: Final[dict[str, dict[str, int]]] = {
    "3.9": {METADATA_VERSION: 21},
    "4.2": {**_GROUPS, METADATA_VERSION: 29},
    "4.3": {**_GROUPS, METADATA_VERSION: 30},
    "4.4": {**_GROUPS, METADATA_VERSION: 33, "share.version": 2},
}
# The names of the levels of metadata.version, up to the newest release.
_METADATA_VERSIONS: Final = (
    *("3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3"),
    *("3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0"),
    *("4.2-IV1", "4.3-IV0", "4.4-IV0", "4.4-IV1", "4.4-IV2"),
)


def highest_level(release: str, feature: str) -> int:
    """The highest level of a feature that a KRaft broker of a release supports; 0: it
    does not know the feature.

    Raises:
        KeyError: the release is not in `RELEASES`, or has no KRaft feature levels.
    """
    return _LEVELS[release].get(feature, 0)


def metadata_version(level: int) -> str:
    """The name of a level of metadata.version, such as ``4.4-IV2``; "" if the level is
    newer than all known ones."""
    return _METADATA_VERSIONS[level - 1] if 0 < level <= len(_METADATA_VERSIONS) else ""


def first_release(feature: str, level: int) -> str:
    """The first of `RELEASES` that supports a level of a feature; "": none does."""
    return next((r for r, top in _LEVELS.items() if top.get(feature, 0) >= level), "")
