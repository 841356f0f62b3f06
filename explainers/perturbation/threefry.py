"""A random generator whose numbers depend only on a seed, a row and a position, with equal values on every device.

Threefry-2x32 maps two counters to two words of 32 bits with additions, rotations and exclusive ors. Integers have no
rounding, so the words are equal on every device. Words become uniform numbers by an exact multiplication, and normal
numbers by a table, because devices round logarithms and cosines differently.

Source   Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, doi:10.1145/2063384.2063405, section 3.3
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

ROUNDS = 13
"""The fewest rounds with which Threefry-2x32 passes all tests of BigCrush in the paper; its default is 20."""
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF
_LEVELS = 2**16
"""Number of equally probable values of a normal number, from -4.33 to 4.33: a word has the bits of two of them."""


def words(seed: int, rows: Tensor, columns: Tensor, rounds: int = ROUNDS) -> tuple[Tensor, Tensor]:
    """Return two int32 words for each row and column; the counters `rows` and `columns` are int32 and broadcast."""
    keys = [seed & _WORD, seed >> 32 & _WORD]
    keys.append(_PARITY ^ keys[0] ^ keys[1])
    first, second = torch.broadcast_tensors(rows, columns)
    first, second = first + _signed(keys[0]), second + _signed(keys[1])
    for k in range(rounds):
        turn = _ROTATIONS[k % 8]
        first += second
        low = (second >> 32 - turn).bitwise_and_((1 << turn) - 1)  # the shift of a signed word copies its sign
        second = second.bitwise_left_shift_(turn).bitwise_or_(low).bitwise_xor_(first)
        if k % 4 == 3:
            step = k // 4 + 1
            first += _signed(keys[step % 3])
            second += _signed(keys[(step + 1) % 3] + step)
    return first, second


def uniform(seed: int, start: int, rows: int, count: int, device: torch.device) -> Tensor:
    """Return [rows, count] numbers in [0, 1), multiples of 2^-24, of the rows from `start` on."""
    pair = words(seed, *_counters(start, rows, -(-count // 2), device))
    return (torch.cat(pair, 1)[:, :count] >> 8).bitwise_and_(2**24 - 1).to(torch.float32).mul_(2.0**-24)


def normal(seed: int, start: int, rows: int, count: int, device: torch.device) -> Tensor:
    """Return [rows, count] standard normal numbers of the rows from `start` on."""
    pair = torch.cat(words(seed, *_counters(start, rows, -(-count // 4), device)), 1)
    levels = torch.cat([pair & _LEVELS - 1, pair >> 16 & _LEVELS - 1], 1)[:, :count]
    return _quantiles(device).index_select(0, levels.flatten()).view(rows, count)


def _counters(start: int, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    each_row = torch.arange(start, start + rows, dtype=torch.int32, device=device)
    return each_row[:, None], torch.arange(columns, dtype=torch.int32, device=device)


def _signed(word: int) -> int:
    """Return the int32 with the bits of a word; sums of int32 wrap around."""
    word &= _WORD
    return word - (1 << 32) if word >> 31 else word


@lru_cache(maxsize=16)
def _quantiles(device: torch.device) -> Tensor:
    """Return the medians of equally probable intervals of the normal distribution, with a variance of 1, float32."""
    with torch.inference_mode(False), torch.no_grad():
        middle = (torch.arange(_LEVELS, dtype=torch.float64, device="cpu") + 0.5) / _LEVELS
        values = torch.special.ndtri(middle)
        return (values / values.square().mean().sqrt()).to(torch.float32).to(device)
