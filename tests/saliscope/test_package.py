"""What `import saliscope` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import saliscope


def test_dir_lists_the_public_names_and_importing_them_does_not_import_torch() -> None:
    code = "import sys, saliscope; print(dir(saliscope)); assert not {'torch', 'PIL'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(["__version__", "example", "list_models", "load_model", "runs"])
    assert all(hasattr(saliscope, name) for name in dir(saliscope))


def test_an_example_is_an_image_of_the_installed_package() -> None:
    image = saliscope.example("coffee")
    path = Path(image.filename)  # type: ignore[attr-defined]
    assert image.mode == "RGB" and path.name == "coffee.jpg" and Image.open(path).size == image.size
    with pytest.raises(ValueError, match=r"Unknown example 'cofee'.*dog, coffee"):
        saliscope.example("cofee")
