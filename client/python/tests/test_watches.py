"""Changes of files."""

import pytest

import jig
from jig.v1 import reasons
from jig.v1.messages import EntryChange, WatchReady


def test_watch_files(request: pytest.FixtureRequest, client: jig.Client) -> None:
    root = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    client.create_directory(root)
    events = client.watch_files(root, exclude_globs=["no"])
    assert next(events) == WatchReady(directories=1)
    client.write_file(f"{root}/no", "")
    client.write_file(f"{root}/a", "")
    assert next(events) == EntryChange(kind="CREATED", path=f"{root}/a", type="FILE")
    client.create_directory(f"{root}/d/e")
    changes = [next(events), next(events)]
    paths = [change.path for change in changes if isinstance(change, EntryChange)]
    assert paths == [f"{root}/d", f"{root}/d/e"]
    events.close()
    with pytest.raises(reasons.DirectoryNotFound):
        next(client.watch_files(f"{root}/none"))
