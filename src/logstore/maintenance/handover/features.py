"""Checks the feature levels of a KRaft cluster against the broker that will start with
them: a broker refuses levels that it does not support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from logstore.broker.releases import (
    METADATA_VERSION,
    first_release,
    highest_level,
    metadata_version,
)
from logstore.io import layout
from logstore.maintenance.cluster import Cluster
from logstore.maintenance.facts import StoreFacts
from logstore.maintenance.finding import BROKER, OK, REFUSES, Finding

__all__ = ["feature_findings"]

_KIND: Final = "feature-level"
# Reads bootstrap.checkpoint at each start; later releases only for an empty log.
_READS_BOOTSTRAP: Final = "3.9"
# For an empty log, writes its own records and ignores a snapshot at offset 0.
_SKIPS_FORMATTED: Final = "4.3"


def feature_findings(facts: StoreFacts, release: str) -> Iterator[Finding]:
    """Findings: whether a KRaft broker of a release starts with the levels in the
    directory; no finding if it contains no levels."""
    levels, name = _levels(facts.cluster, release)
    if not levels:
        return
    path = facts.path_of(name)
    newer = {
        feature: level
        for feature, level in sorted(levels.items())
        if level > highest_level(release, feature)
    }
    if not newer:
        text = f"Kafka {release} takes the levels of the cluster's features"
        yield Finding(BROKER, _KIND, OK, path, text, values={"levels": levels})
        return
    needed = _needed(newer)
    owner = needed or "the release that has made it"
    shown = ", ".join(_shown(feature, newer[feature], release) for feature in newer)
    text = (
        f"{name} has levels of features that are too new for Kafka {release}: {shown}. "
        f"A newer tool has formatted the directory, or the cluster was upgraded, and "
        f"such a level cannot be lowered. Give the directory to a broker of "
        f"{owner} or later; or give its topics alone to {release}: move "
        f"{layout.META_PROPERTIES}, {layout.CLUSTER_BOOTSTRAP} and "
        f"{layout.CLUSTER_METADATA} elsewhere, format with kafka-storage of {release} "
        f"(or a later one with --release-version {release}), create the topics, and "
        f"take the {layout.PARTITION_METADATA} that the broker has made"
    )
    values = {"levels": newer, "release": needed}
    yield Finding(BROKER, _KIND, REFUSES, path, text, values=values)


def _levels(cluster: Cluster, release: str) -> tuple[Mapping[str, int], str]:
    """The levels with which a broker of a release starts, and the file or directory
    that contains them."""
    levels = dict(cluster.levels)
    if release != _SKIPS_FORMATTED:
        levels = _higher(levels, cluster.formatted)
    is_read = release == _READS_BOOTSTRAP or not levels
    if is_read and _higher(levels, cluster.bootstrap) != levels:
        return _higher(levels, cluster.bootstrap), layout.CLUSTER_BOOTSTRAP
    return levels, layout.CLUSTER_METADATA


def _higher(levels: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher level of each feature."""
    return {
        name: max(levels.get(name, 0), other.get(name, 0))
        for name in {**levels, **other}
    }


def _needed(levels: Mapping[str, int]) -> str:
    """The first release that supports all of these levels; "": no known one."""
    releases = [first_release(name, level) for name, level in levels.items()]
    return max(releases) if all(releases) else ""


def _shown(feature: str, level: int, release: str) -> str:
    """A level that is too new for a release, and the highest level it supports."""
    name = metadata_version(level) if feature == METADATA_VERSION else ""
    highest = highest_level(release, feature)
    takes = f"at most {highest}" if highest else "unknown there"
    return f"{feature} {level}{name and f', {name}'} ({takes})"
