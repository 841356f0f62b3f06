"""The choice of a device by its name, and the comparison with the CPU, on a pretended accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hooklens.datasets import run
from hooklens.datasets.finished.evaluation import evaluate
from hooklens.datasets.finished.finished_run import FinishedRun
from hooklens.datasets.settings import Settings
from hooklens.datasets.shards import open_run
from hooklens.errors import Refused
from hooklens.images.uploads import open_image
from hooklens.zoo import devices
from hooklens.zoo.model import Model, Preparation
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


def test_maps_that_differ_from_the_cpu_are_reported() -> None:
    with pretended_devices():
        assert devices.compare(small_model(residual().float()), WITHOUT_FLOAT64) == ""
        warning = devices.compare(small_model(Wrong()), WITHOUT_FLOAT64)
    assert warning.startswith("On lazy:1, a Grad-CAM differs from the CPU's by 0.0")


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
        return rows, evaluate(finished, images=2, steps=2, precision="float32", device=device)

    expected = explain_and_evaluate("cpu")
    with pretended_devices():
        assert explain_and_evaluate("lazy:1") == expected
