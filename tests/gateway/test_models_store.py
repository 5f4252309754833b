"""A model is found where it lies, or the sentence says what was looked for."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from gateway.models_store import BUILT_IN, ModelMissing, fetch, find, is_hub_id


def directory(path: Path, *, without: str = "") -> Path:
    path.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if name != without:
            (path / name).touch()
    return path


def test_the_built_in_model_is_where_the_bootstrap_puts_it(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"deploy/dev\.py serve'.*LOCKGATE_MODELS_DIR"):
        find("smollm2-135m", tmp_path)
    path = tmp_path / BUILT_IN["smollm2-135m"]
    path.parent.mkdir()
    path.touch()
    assert find("smollm2-135m", tmp_path).path == path


def test_paths_are_found(tmp_path: Path) -> None:
    model = directory(tmp_path / "m")
    (tmp_path / "x.gguf").touch()
    (tmp_path / "x.bin").touch()
    assert find(str(model), tmp_path).path == model
    assert find(str(tmp_path / "x.gguf"), tmp_path).path == tmp_path / "x.gguf"
    with pytest.raises(ModelMissing, match=r"not a \.gguf file"):
        find(str(tmp_path / "x.bin"), tmp_path)


@pytest.mark.parametrize("without", ("config.json", "tokenizer.json", "model.safetensors"))
def test_an_incomplete_directory_says_what_it_lacks(tmp_path: Path, without: str) -> None:
    model = directory(tmp_path / "m", without=without)
    with pytest.raises(ModelMissing, match=without.replace("model", r"\*")):
        find(str(model), tmp_path)


@pytest.mark.parametrize("where", ("nowhere", "../up", "a/../b", "/absent/dir", "a/b/c"))
def test_what_is_nowhere_is_never_fetched(tmp_path: Path, where: str) -> None:
    assert not is_hub_id(where)
    with pytest.raises(ModelMissing, match="There is no model at"):
        fetch(where, tmp_path)


def test_a_hub_id_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def snapshot_download(where: str, *, local_dir: Path, allow_patterns: list[str]) -> None:
        calls.append(where)
        assert not any("*.bin" in pattern or ".py" in pattern for pattern in allow_patterns)
        if where == "owner/broken":
            raise OSError("no network")
        directory(local_dir)

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    for _ in range(2):
        assert fetch("owner/model", tmp_path).path == tmp_path / "owner--model"
    assert calls == ["owner/model"]
    with pytest.raises(ModelMissing, match="could not be fetched"):
        fetch("owner/broken", tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelMissing, match="not installed"):
        fetch("owner/other", tmp_path)
