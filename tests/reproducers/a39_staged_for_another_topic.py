"""Records staged for a topic that is deleted and created again are published into the
new one, and not checked against its settings: a batch beyond its max_message_bytes gets
in. The same with settings that were changed between stage and publish.

Usage: python a39_staged_for_another_topic.py
"""

import tempfile

import logstore

wrong = []
with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    p = store.create_topic("t", config=logstore.TopicConfig(message_format=2))[0]
    with store.stage("me", 1) as stage:
        stage.append_many(p, [b"for the first topic" * 10])
        staged = stage.finish()
    store.delete_topic("t")
    limit = logstore.TopicConfig(message_format=2, max_message_bytes=100)
    p = store.create_topic("t", config=limit)[0]
    try:
        store.publish([staged], identity="me", sequence=1)
        batch = next(p.read_batches())
        wrong.append(
            "records staged for a deleted topic are in the one that has its name now"
        )
        if batch.size_bytes > 100:
            wrong.append(f"max_message_bytes=100, and a batch has {batch.size_bytes}")
    except logstore.LogStoreError as error:
        print("OK   ", type(error).__name__, error)
print("\n".join("WRONG " + one for one in wrong))
raise SystemExit(bool(wrong))
