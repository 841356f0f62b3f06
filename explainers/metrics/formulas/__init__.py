"""Formulas of the metrics, one file for each kind. Importing this package fills METRICS, in the order of these lines.

`evaluate` offers every function decorated with `@metric` in one of these files; a new file needs one line here. A
formula gets scores from its `Trial` and does not run the network directly.
"""

from explainers.metrics.formulas import masking as masking  # isort: skip
from explainers.metrics.formulas import fidelity as fidelity  # isort: skip
from explainers.metrics.formulas import robustness as robustness  # isort: skip
from explainers.metrics.formulas import shape as shape  # isort: skip
