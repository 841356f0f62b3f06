"""The choice of a device by its name, and the comparison with the CPU, on a pretended accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from saliscope import limits
from saliscope.compute import model_cache, network_calls
from saliscope.compute.answers import LoadedModel
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import run
from saliscope.runs.finished_run import FinishedRun, evaluate
from saliscope.runs.ray_engine.stages import Workers
from saliscope.runs.settings import Settings
from saliscope.runs.shards import open_run
from saliscope.zoo import ModelUnavailable, devices, variants
from saliscope.zoo.model import Model, Preparation
from tests.support.nets import residual
from tests.support.pretended_device import WITHOUT_FLOAT64, pretended_devices


class Wrong(nn.Module):
    """A network whose features are 1% larger on an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = residual().float()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if x.device.type == "cpu" else 1.01 * x)


def small_model(network: nn.Module) -> Model:
    return Model("small", network.eval(), [*"abcdefg"], Preparation(16, 16, (0.5,) * 3, (0.5,) * 3))


@pytest.fixture
def one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "lazy:0", "lazy:1"])


@pytest.mark.usefixtures("one_accelerator")
def test_a_device_is_chosen_by_its_name() -> None:
    names = ("auto", "cpu", "lazy", "lazy:1")
    assert [str(devices.choose(name)) for name in names] == ["lazy", "cpu", "lazy", "lazy:1"]
    for name in ("lazy:2", "cuda:7", "gpu", "mps"):
        with pytest.raises(Refused, match=f"'{name}' is not available. Available: cpu, lazy:0, lazy:1"):
            devices.choose(name)


def test_without_an_accelerator_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in devices.ACCELERATORS:
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    assert devices.available() == ["cpu"] and devices.choose("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    assert devices.available() == ["cpu", "mps:0"] and devices.choose("auto") == torch.device("mps")


def test_a_network_that_differs_or_fails_on_the_device_only_is_reported() -> None:
    class Failing(Wrong):
        def forward(self, x: Tensor) -> Tensor:
            if x.device.type != "cpu":
                raise NotImplementedError("The operator 'aten::x' is not implemented for this device.\nMore text")
            return super().forward(x)

    with pretended_devices():
        assert devices.compare(small_model(residual().float()), WITHOUT_FLOAT64) == ""
        wrong = devices.compare(small_model(Wrong()), WITHOUT_FLOAT64)
        fails = devices.compare(small_model(Failing()), WITHOUT_FLOAT64)
    assert wrong.startswith("On lazy:1, a Grad-CAM differs from the CPU's by 0.0")
    assert "Grad-CAM fails" in fails and "'aten::x'" in fails and "Use --device cpu." in fails and "More" not in fails


@pytest.mark.usefixtures("one_accelerator")
def test_a_run_and_its_evaluation_on_a_device_are_those_of_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for k in range(2):
        Image.effect_noise((24, 20), 90 + k).convert("RGB").save(tmp_path / "images" / f"{k}.png")

    def explain_and_evaluate(device: str) -> tuple[list[dict[str, object]], dict[str, object]]:
        out, model = tmp_path / device.replace(":", "_"), small_model(residual().float())
        job = run.prepare(Settings("small"), str(tmp_path / "images"), out, model=model, device=device)
        run.run(job, decode=open_image, workers=0, device=device)
        finished = FinishedRun(open_run(out), open_image)
        finished.__dict__["model"] = model
        rows = [{**row, "seconds": None} for row in finished.data.table.to_pylist()]
        found = evaluate(finished, images=2, steps=2, precision="float32", device=device).to_dict()
        assert {row.pop("device") for row in rows} == {device}
        assert found.pop("device") == device and found.pop("file")
        return rows, found

    expected = explain_and_evaluate("cpu")
    with pretended_devices():
        assert explain_and_evaluate("lazy:1") == expected


@pytest.mark.usefixtures("one_accelerator")
def test_the_device_is_part_of_a_models_name() -> None:
    model = small_model(residual().float())
    with pretended_devices():
        moved = variants.change_settings(model, "device=lazy:1&size=12")
        own = {parameter.device for parameter in model.network.parameters()}
        other = {parameter.device for parameter in moved.network.parameters()}
    assert moved.name == "small?device=lazy:1&size=12" and moved.size == (12, 12)
    assert own == {torch.device("cpu")} and other == {WITHOUT_FLOAT64}
    with pytest.raises(ModelUnavailable, match="'lazy:7' is not available. Available: cpu, lazy:0, lazy:1"):
        variants.change_settings(model, "device=lazy:7")


@pytest.mark.usefixtures("one_accelerator")
def test_on_a_shared_gpu_networks_move_inside_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARED_GPU", True)
    monkeypatch.setattr(model_cache, "device_name", "lazy:1")
    model = small_model(residual().float())
    loaded = LoadedModel("small", "Small", model, [], [], "", torch.device("cpu"))
    monkeypatch.setitem(model_cache.loaded_models, "small", loaded)
    with pretended_devices() as transfers:
        found = network_calls.explain("small", "grad_cam", torch.rand(1, 3, 16, 16), target=1)
    assert found.device == "lazy:1" and found.map.device.type == "cpu" and transfers["to device"] > 0


def test_ray_workers_on_a_device_have_gpus() -> None:
    for device, gpus, cluster, expected in (
        ("cpu", 0, 4, ("cpu", 0)), ("cpu", 0.5, 4, ("cuda", 0.5)), ("cuda", 0, 4, ("cuda", 1)),
        ("xpu", 2, 4, ("xpu", 2)), ("auto", 0, 4, ("auto", 1)), ("auto", 0, 0, ("auto", 0)), ("mps", 0, 0, ("mps", 0)),
    ):  # fmt: skip
        found = Workers(gpus=gpus, device=device).resolve(cluster)
        assert (found.device, found.gpus) == expected
