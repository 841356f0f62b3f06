"""Color maps: tables of 256 colors, and the end colors of the signed map. Jet is left out: it shows false edges."""

from __future__ import annotations

import base64

import torch
from torch import Tensor

from explainers.errors import BadOption, nearest, shorten

# 256 x 3 bytes each. Magma and viridis are by Nathaniel J. Smith and Stefan van der Walt, in the public domain (CC0).
MAGMA = (
    "AAAEAQAFAQEGAQEIAgEJAgILAgINAwMPAwMSBAQUBQQWBgUYBgUaBwYcCAceCQcgCggiCwkkDAkmDQopDgsrEAstEQwvEg0xEw00FA42FQ44Fg87"
    "GA89GRA/GhBCHBBEHRFHHhFJIBFLIRFOIhFQJBJTJRJVJxJYKRFaKhFcLBFfLRFhLxFjMRFlMxBnNBBpNhBrOBBsOQ9uOw9wPQ9xPw9yQA90Qg91"
    "RA92RRB3RxB4SRB4ShB5TBF6ThF7TxJ7URJ8UhN8VBN9VhR9VxV+WRV+WhZ+XBZ/XRd/Xxh/YBiAYhmAZBqAZRqAZxuAaByBahyBax2BbR2Bbh6B"
    "cB+Bch+BcyCBdSGBdiGBeCKBeSKCeyOCfCOCfiSCgCWCgSWBgyaBhCaBhieBiCeBiSiBiymBjCmBjiqBkCqBkSuBkyuAlCyAliyAmC2AmS2Amy5/"
    "nC5/ni9/oC9/oTB+ozB+pTF+pjF9qDJ9qjN9qzN8rTR8rjR7sDV7sjV7szZ6tTZ6tzd5uDd5ujh4vDl4vTl3vzp3wDp2wjt1xDx1xTx0xz1zyD5z"
    "yj5yzD9xzUBxz0Bw0EFv0kJv00Nu1URt1kVs2EVs2UZr20dq3Ehp3klo30po4Exn4k1m405l5E9k5VBk51Jj6FNi6VRi6lZh61dg7Fhg7Vpf7lte"
    "711e8F9e8WBd8mJd8mRc82Vc9Gdc9Glc9Wtc9mxc9m5c93Bc93Jc+HRc+HZc+Xhd+Xld+Xtd+n1e+n9e+oFf+4Nf+4Vg+4dh/Ilh/Ipi/Ixj/I5k"
    "/JBl/ZJm/ZRn/ZZo/Zhp/Zpq/Ztr/p1s/p9t/qFu/qNv/qVx/qdy/qlz/qp0/qx2/q53/rB4/rJ6/rR7/rZ8/rd+/rl//ruB/r2C/r+E/sGF/sKH"
    "/sSI/saK/siM/sqN/syP/s2Q/s+S/tGU/tOV/tWX/teZ/tia/dqc/dye/d6g/eCh/eKj/eOl/eWn/eep/emq/eus/Oyu/O6w/PCy/PK0/PS2/Pa4"
    "/Pe5/Pm7/Pu9/P2/"
)

VIRIDIS = (
    "RAFURAJWRQRXRQVZRgdaRghcRgpdRgteRw1gRw5hRxBjRxFkRxNlSBRnSBZoSBdpSBhqSBpsSBttSBxuSB1vSB9wSCBxSCFzSCN0SCR1SCV2SCZ3"
    "SCh4SCl5Ryp6Ryx6Ry17Ry58Ry99RjB+RjJ+RjN/RjSARTWBRTeBRTiCRDmDRDqDRDuEQz2EQz6FQj+FQkCGQkGGQUKHQUSHQEWIQEaIP0eIP0iJ"
    "PkmJPkqJPkyKPU2KPU6KPE+KPFCLO1GLO1KLOlOLOlSMOVWMOVaMOFiMOFmMN1qMN1uNNlyNNl2NNV6NNV+NNGCNNGGNM2KNM2ONMmSOMmWOMWaO"
    "MWeOMWiOMGmOMGqOL2uOL2yOLm2OLm6OLm+OLXCOLXGOLHGOLHKOLHOOK3SOK3WOKnaOKneOKniOKXmOKXqOKXuOKHyOKH2OJ36OJ3+OJ4COJoGO"
    "JoKOJoKOJYOOJYSOJYWOJIaOJIeOI4iOI4mOI4qNIouNIoyNIo2NIY6NIY+NIZCNIZGMIJKMIJKMIJOMH5SMH5WLH5aLH5eLH5iLH5mKH5qKHpuK"
    "HpyJHp2JH56JH5+IH6CIH6GIH6GHH6KHIKOGIKSGIaWFIaaFIqeFIqiEI6mDJKqDJauCJayCJq2BJ62BKK6AKa9/KrB/LLF+LbJ9LrN8L7R8MbV7"
    "MrZ6NLZ5Nbd5N7h4OLl3Orp2O7t1Pbx0P7xzQL1yQr5xRL9wRsBvSMFuSsFtTMJsTsNrUMRqUsVpVMVoVsZnWMdlWshkXMhjXsliYMpgY8tfZcte"
    "Z8xcac1bbM1abs5YcM9Xc9BWddBUd9FTetFRfNJQf9NOgdNNhNRLhtVJidVIi9ZGjtZFkNdDk9dBldhAmNg+m9k8ndk7oNo5oto3pds2qNs0qtwy"
    "rdwwsN0vst0ttd4ruN4put4ovd8mwN8lwt8jxeAhyOAgyuEfzeEd0OEc0uIb1eIa2OIZ2uMZ3eMY3+MY4uQY5eQZ5+QZ6uUa7OUb7+Uc8eUd9OYe"
    "9uYg+OYh++cj/ecl"
)

# The ends of the signed map: a blue and a red of similar lightness (L* 51 and 50), visible on dark and pale
# backgrounds. Viewers with protan, deutan or tritan deficiency can tell them apart, as the tests check by simulation.
BLUE, RED = (40, 122, 235), (228, 50, 40)
COLORS = ("magma", "viridis", "signed")


def color_map(name: str) -> Tensor:
    """Return the 256 colors of "magma", "viridis" or "signed".

    Returns  uint8 `[256, 3]`, RGB, from low to high; "signed" is white at entry 128 = `round(255 * 0.5)`, and changes
             linearly to `BLUE` (entries 0 and 1) and `RED` (255).
    Errors   BadOption for another name.

    Example
        >>> color_map("signed")[[0, 128, 255]].tolist()
        [[40, 122, 235], [255, 255, 255], [228, 50, 40]]
    """
    if not isinstance(name, str) or name not in COLORS:
        hint = nearest(str(name), COLORS)
        raise BadOption(f"Unknown color map {shorten(name)}. {hint}Choose one of {', '.join(COLORS)}.")
    if name == "signed":
        t = ((torch.arange(256) - 128) / 127).clamp(-1, 1)[:, None]
        ends = torch.where(t < 0, torch.tensor(BLUE), torch.tensor(RED))
        return (255 + (ends - 255) * t.abs()).round().to(torch.uint8)
    tables = {"magma": MAGMA, "viridis": VIRIDIS}
    return torch.tensor(list(base64.b64decode(tables[name])), dtype=torch.uint8).view(256, 3)
