"""A publisher has the identity "group:billing", if no call refuses it. The group
"billing" is unusable: each poll raises CorruptCheckpointError, also for a group that
commits with `commit()`; a group that commits by transactions loses its positions.

Usage: python s17_identity_of_a_group_is_not_reserved.py
"""

import contextlib
import logging
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
said = []


def fresh():
    path = tempfile.mkdtemp()
    with ls.open(path) as s:
        s.create_topic("t").append_many([b"1"] * 5, durable=True)
        s.create_topic("out")
    return path


def publish(path):
    with ls.open(path) as s:
        last = s.published("group:billing") or 0
        with s.stage("group:billing", last + 1) as st:
            st.append_many(s["out"][0], [b"mine"])
            done = st.finish()
        s.publish([done], identity="group:billing", sequence=last + 1)


def try_to_publish(path):
    """Publish; a refusal is correct, and publishes nothing."""
    with contextlib.suppress(ls.ConfigError):
        publish(path)


path = fresh()
try_to_publish(path)
try:
    with ls.Consumer(path, group="billing", topics=["t"], reset="earliest") as c:
        n = sum(map(len, c.poll(timeout_ms=500).values()))
        c.commit()
except ls.LogStoreError as e:
    said.append(f"a new group that commits: {type(e).__name__}")
path = fresh()
for _ in range(2):
    try:
        with (
            ls.Consumer(path, group="billing", topics=["t"], reset="earliest") as c,
            c.transaction() as tx,
        ):
            for v in c.poll(timeout_ms=500).values():
                for r in v:
                    tx.append("out", r.value)
    except ls.LogStoreError as e:
        said.append(f"a group with transactions: {type(e).__name__}")
    try_to_publish(path)
print(f"WRONG {'; '.join(said)}" if said else "OK")
raise SystemExit(bool(said))
