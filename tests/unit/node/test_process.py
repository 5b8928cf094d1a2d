"""Nodes as processes: one that cannot start is named with what it said, and nothing is left running."""

import pytest

from node_helpers import prepare
from sfumato.errors import OwnerError
from sfumato.node import process
from sfumato.node.process import NodeProcess


def test_a_node_that_cannot_start_is_named_and_all_are_stopped(tmp_path, monkeypatch):
    for name in ("amber", "birch"):
        prepare(tmp_path / name)
    (tmp_path / "birch" / "model.py").unlink()
    begun = []
    monkeypatch.setattr(process, "NodeProcess", lambda *given: begun.append(NodeProcess(*given)) or begun[-1])
    # Birch first: it ends by itself, while Amber is still coming up.
    owners = [(name, tmp_path / name / "owner.toml") for name in ("birch", "amber")]
    with pytest.raises(OwnerError, match="'birch' did not start.*no model file") as caught, process.running(owners):
        pass
    assert caught.value.owner == "birch"
    assert len(begun) == 2 and all(node.process.poll() is not None for node in begun)


def test_ports_differ():
    assert len(set(process.free_ports(20))) == 20
