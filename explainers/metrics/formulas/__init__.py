"""The metrics' formulas, a file for each kind; importing this package fills METRICS, in the order of these lines.

A function decorated with `@metric` in one of these files is offered by `evaluate` by that alone; a new file needs one
line here. A formula asks its `Trial` for scores, and never runs the network itself.
"""

from explainers.metrics.formulas import masking as masking  # isort: skip
from explainers.metrics.formulas import fidelity as fidelity  # isort: skip
from explainers.metrics.formulas import robustness as robustness  # isort: skip
from explainers.metrics.formulas import shape as shape  # isort: skip
