"""Weights by name: they come back as they were, or not at all."""

import json
import os

import pytest
import torch
from torch import nn

from dcem_lab import pretrained
from dcem_lab.pretrained import PretrainedError
from dcem_lab.runs.files import seal, unseal


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    pretrained.save("cheetah-run", {"width": 3, "horizon": [12]}, nn.Linear(3, 2).state_dict(), tmp_path)
    pretrained.save("walker-walk", {"width": 4}, nn.Linear(4, 2).state_dict(), tmp_path)
    return tmp_path


def test_round_trip(folder):
    assert pretrained.available(folder) == ["cheetah-run", "walker-walk"]
    config, state = pretrained.load("cheetah-run", folder)
    assert config == {"width": 3, "horizon": [12]}
    torch.manual_seed(0)
    expected = nn.Linear(3, 2)
    model = nn.Linear(config["width"], 2)
    model.load_state_dict(state)
    assert torch.equal(model.weight, expected.weight)


def test_saving_again_replaces(folder):
    pretrained.save("walker-walk", {"width": 1}, {"w": torch.ones(1)}, folder)
    assert pretrained.load("walker-walk", folder) == ({"width": 1}, {"w": torch.ones(1)})
    assert len(pretrained.available(folder)) == 2


def test_tied_weights_and_the_gpu_free_layout(folder):
    weight = torch.arange(6.0).view(2, 3)
    pretrained.save("tied", {}, {"a": weight, "b": weight, "c": weight.T}, folder)
    _, state = pretrained.load("tied", folder)
    assert torch.equal(state["a"], state["b"])
    assert torch.equal(state["c"], weight.T)


def test_an_unknown_name_lists_the_known(folder, tmp_path):
    with pytest.raises(
        PretrainedError, match=r"'cheeta-run'; did you mean 'cheetah-run'\? known: cheetah-run, walker"
    ):
        pretrained.load("cheeta-run", folder)
    with pytest.raises(PretrainedError, match="there are no weights 'x'"):
        pretrained.load("x", tmp_path / "empty")


def test_what_ships_is_intact():
    for name in pretrained.available():
        config, state = pretrained.load(name)
        assert config
        assert state


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".x", "x y"])
def test_names_are_plain(folder, name):
    with pytest.raises(PretrainedError, match="name must be lower-case letters"):
        pretrained.save(name, {}, {"w": torch.ones(1)}, folder)


def test_configs_are_plain(folder):
    with pytest.raises(PretrainedError, match="config must hold JSON values"):
        pretrained.save("x", {"f": print}, {"w": torch.ones(1)}, folder)


def test_every_flipped_byte_is_refused(folder):
    for name in ("cheetah-run.safetensors", "manifest.json"):
        path = folder / name
        content = path.read_bytes()
        for place in range(0, len(content), 7):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(PretrainedError, match="damaged"):
                pretrained.load("cheetah-run", folder)
        path.write_bytes(content)
    pretrained.load("cheetah-run", folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "link", 3, None])
def test_a_manifest_cannot_point_elsewhere(folder, name):
    secret = folder.parent / "secret.safetensors"
    secret.write_bytes((folder / "cheetah-run.safetensors").read_bytes())
    if not (folder / "link").is_symlink():
        os.symlink(secret, folder / "link")
    body = unseal((folder / "manifest.json").read_bytes())
    body["weights"]["cheetah-run"]["tensors"]["file"] = name
    (folder / "manifest.json").write_bytes(seal(body))
    with pytest.raises(PretrainedError, match=r"file name|regular file"):
        pretrained.load("cheetah-run", folder)


@pytest.mark.parametrize("weights", [None, [], {"cheetah-run": {}}, {"cheetah-run": 3}])
def test_other_manifests_are_refused(folder, weights):
    (folder / "manifest.json").write_bytes(seal({"weights": weights}))
    with pytest.raises(PretrainedError, match="damaged"):
        pretrained.load("cheetah-run", folder)


def test_the_manifest_is_readable_json(folder):
    entry = json.loads((folder / "manifest.json").read_text())["weights"]["walker-walk"]
    assert entry["config"] == {"width": 4}
    assert entry["tensors"]["bytes"] == (folder / "walker-walk.safetensors").stat().st_size
