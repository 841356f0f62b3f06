"""Memory of the server while visitors ask many different questions.

`python -m benchmarks.page.memory --questions 2000` starts the app, sends the requests that the page sends, and prints
the resident memory of the server after every hundred questions. A question is an image, a class, a layer and a method;
about half of them are followed by the verdict, the channels or a ranking. A new visitor comes every 25 questions, and
slow methods are stopped after two seconds (`--patience`). `--minutes` ends the run earlier.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

import explainers
from benchmarks.page.__main__ import ROOT, free_port, start, until_served

EXAMPLES = sorted((ROOT / "assets" / "examples").glob("*.jpg"))
SIDES = (224, 500, 1000, 1600, 3000)
MAPS = ("grid", "pixels", "heat", "features")
LAYERS = ("", "", "", "blocks.1", "blocks.3", "blocks.5", "head")
VISITOR, EVERY, REST, PATIENCE = 25, 100, 10.0, 2.0
"""Questions of one visitor, questions between two lines, seconds at rest, and seconds until Stop."""


class Visitor:
    """A visitor of the page, who sends the events of the browser."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self.client, self.session = client, session
        config = client.get("/config").json()
        self.events = {event["api_name"]: event for event in config["dependencies"]}
        self.names = {each["id"]: each["props"].get("elem_id") for each in config["components"]}

    def send(self, event: str, form: dict[str, Any], data: Any = None) -> dict[str, str]:
        """Send an event with the values of its inputs and return the texts of its outputs, by the ids of the elements.

        Errors   RuntimeError if the server refuses the event
        """
        call = self.events[event]
        values = [form.get(self.names[ident]) for ident in call["inputs"]]
        trigger = call["targets"][0][0] if call["targets"] else None
        message = {"data": values, "fn_index": call["id"], "session_hash": self.session, "event_data": data}
        self.client.post("/gradio_api/queue/join", json={**message, "trigger_id": trigger}).raise_for_status()
        texts: dict[str, str] = {}
        for step in self._steps():
            outputs = step.get("output", {}).get("data") or []
            for ident, value in zip(call["outputs"], outputs, strict=False):
                if isinstance(value, str):
                    texts[self.names[ident]] = value
            if step.get("msg") == "process_completed":
                if not step["success"]:
                    raise RuntimeError(f"The server refused {event}.")
                break
        return texts

    def _steps(self) -> Iterator[dict[str, Any]]:
        with self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.session}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def stop(self) -> None:
        """Press Stop."""
        message = {"data": [], "fn_index": self.events["stop"]["id"], "session_hash": self.session}
        self.client.post("/gradio_api/run/predict", json=message)

    def upload(self, image: bytes) -> dict[str, Any]:
        """Upload an image and return the value of the image component."""
        path = self.client.post("/gradio_api/upload", files={"files": ("image.jpg", image)}).json()[0]
        return {"path": path, "orig_name": "image.jpg", "meta": {"_type": "gradio.FileData"}}


def crop(rng: random.Random, side: int = 0) -> bytes:
    """Return a random part of an example as JPEG, with a width in pixels or one of `SIDES`."""
    with Image.open(rng.choice(EXAMPLES)) as image:
        part, side = rng.uniform(0.5, 1.0), side or rng.choice(SIDES)
        wide, high = int(part * image.width), int(part * image.height)
        left, top = rng.randint(0, image.width - wide), rng.randint(0, image.height - high)
        small = image.convert("RGB").resize((side, side * high // wide), box=(left, top, left + wide, top + high))
    file = io.BytesIO()
    small.save(file, "JPEG")
    return file.getvalue()


def ask(visitor: Visitor, rng: random.Random, patience: float, image: bytes = b"", quick: bool = False) -> None:
    """Ask one question about an image or a random one, and about every second time something about its map.

    Slow methods are stopped after some seconds; `quick` asks without them.
    """
    methods = [each for each in explainers.METHODS.values() if each.returns in MAPS and not (quick and each.long)]
    method = rng.choice(methods)
    target = rng.choice(["", str(rng.randrange(1000))])
    form = {"hl-image": visitor.upload(image or crop(rng)), "hl-layer": rng.choice(LAYERS), "hl-class": target}
    form |= {"hl-model": "", "hl-method": method.name, "hl-options": "{}", "hl-pin": False}
    timer = threading.Timer(patience, visitor.stop)
    if method.long:
        timer.start()
    texts = visitor.send("update", {**form, "hl-address": str(round(1000 * time.monotonic()))})
    timer.cancel()
    visitor.send("measure", form)
    also = rng.random()
    if also < 0.2:
        visitor.send("follow", form)
    elif also < 0.21:
        visitor.send("rank", form, {"seconds": 2.0, "layers": "every"})
    elif also < 0.6 and not method.long and "hl-question" in texts:
        visitor.send("check", form, {"key": json.loads(texts["hl-question"])["key"]})


def resident(process: int, name: str = "VmRSS") -> float:
    """Return the resident memory of a process in MB, or its peak with "VmHWM"."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def main() -> None:
    """Print the memory after every hundred questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--patience", type=float, default=PATIENCE)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    questions, every, patience, minutes = vars(parser.parse_args()).values()
    rng, port = random.Random(0), free_port()
    with tempfile.TemporaryDirectory() as folder, httpx.Client(timeout=300) as client:
        process = start(port, folder)
        client.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        try:
            until_served(str(client.base_url))
            until = time.monotonic() + 60 * minutes
            for number in range(questions + 1):
                is_last = time.monotonic() > until
                if number % every == 0 or is_last:
                    busy = resident(process.pid)
                    time.sleep(REST)
                    memory = f"{resident(process.pid):.0f} MB, {busy:.0f} before a rest of {REST:.0f} s"
                    print(f"{number} questions: {memory}, peak {resident(process.pid, 'VmHWM'):.0f}", flush=True)
                if is_last:
                    break
                if number % VISITOR == 0:
                    visitor = Visitor(client, f"visitor{number}")
                with contextlib.suppress(httpx.HTTPError):
                    ask(visitor, rng, patience)
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
