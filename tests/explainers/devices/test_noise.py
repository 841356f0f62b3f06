"""The counter-based generator: its published values, its distribution, and independence of chunks and devices."""

from __future__ import annotations

import itertools

import pytest
import torch

from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.threefry import words
from tests.support.pretended_device import WITHOUT_FLOAT64, pretended_devices

ONES = 2**32 - 1
PI = (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)
# From kat_vectors of Random123, the authors' library: rounds, two words of the key, two counters, two words.
KNOWN = [
    (13, (0, 0, 0, 0), (0x9D1C5EC6, 0x8BD50731)),
    (13, (ONES, ONES, ONES, ONES), (0xFD36D048, 0x2D17272C)),
    (13, PI, (0xBA3E4725, 0xF27D669E)),
    (20, (0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
    (20, (ONES, ONES, ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    (20, PI, (0xC4923A9C, 0x483DF7A0)),
]


def test_words_are_those_of_the_authors() -> None:
    for rounds, (low, high, *counters), expected in KNOWN:
        row, column = (torch.tensor([word], dtype=torch.int64).to(torch.int32) for word in counters)
        found = words(low | high << 32, row, column, rounds)
        assert tuple(int(word) & ONES for word in found) == expected, (rounds, low)


def test_noise_has_the_moments_of_its_distribution() -> None:
    """Within four standard errors for a million numbers, and neighbors, rows and seeds are uncorrelated."""
    draws = PerImageGenerators(1, 3)
    normal, uniform = draws.normal_noise(0, 4, 250_000).double(), draws.uniform_noise(0, 4, 250_000).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert float((normal**power).mean()) == pytest.approx(moment, abs=4 * (variance / 1e6) ** 0.5)
    for power in (1, 2, 3):
        error = (1 / (2 * power + 1) - 1 / (power + 1) ** 2) ** 0.5 / 1e3
        assert float((uniform**power).mean()) == pytest.approx(1 / (power + 1), abs=4 * error)
    assert 0 <= float(uniform.min()) < 1e-5 and 1 - 1e-5 < float(uniform.max()) < 1
    assert 4.2 < float(normal.abs().max()) < 4.4

    other = PerImageGenerators(1, 4).normal_noise(0, 4, 250_000).double()
    halves = normal[:, :125_000], normal[:, 125_000:]
    pairs = [(normal[:, 1:], normal[:, :-1]), (normal[0], normal[1]), (normal, other), halves]
    assert all(abs(float((a * b).mean())) < 4 / a.numel() ** 0.5 for a, b in pairs)


@pytest.mark.parametrize("kind", ["normal_noise", "uniform_noise"])
def test_rows_do_not_depend_on_chunks_and_images(kind: str) -> None:
    for shape in ((3, 5, 7), (1,), (), (4, 8, 8)):
        whole = getattr(PerImageGenerators(1, 5), kind)(0, 6, *shape)
        assert whole.shape == (6, *shape)
        parts = PerImageGenerators(2, 5)
        for image, chunks in ((0, (1, 2, 3)), (1, (4, 2))):
            assert torch.equal(torch.cat([getattr(parts, kind)(image, rows, *shape) for rows in chunks]), whole)


def test_seeds_of_64_bits_give_different_noise() -> None:
    seeds = (0, 1, 2**31, 2**32, 2**63 - 1)
    found = [PerImageGenerators(1, seed).normal_noise(0, 1, 64) for seed in seeds]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_noise_is_equal_on_every_device() -> None:
    expected = [PerImageGenerators(1, 7).normal_noise(0, 2, 3, 9), PerImageGenerators(1, 7).uniform_noise(0, 2, 3, 9)]
    with pretended_devices() as transfers:
        for _ in range(2):
            transfers.clear()  # the first time, the table of normal numbers moves to the device
            draws = PerImageGenerators(1, 7, WITHOUT_FLOAT64), PerImageGenerators(1, 7, WITHOUT_FLOAT64)
            found = [draws[0].normal_noise(0, 2, 3, 9), draws[1].uniform_noise(0, 2, 3, 9)]
        assert not transfers and all(each.device == WITHOUT_FLOAT64 for each in found)
        assert all(torch.equal(own.cpu(), other) for own, other in zip(found, expected, strict=True))
