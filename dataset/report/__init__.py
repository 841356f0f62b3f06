"""The report on a run: one page that needs nothing else, with the numbers, the mistakes, and clusters of maps.

`analysis/` holds what the rows say, `pictures` makes small photographs, `headlines` and `say` have the sentences,
`links` addresses of the app; `content` gathers it all, and `page` writes it.
"""

from dataset.report.page import write

__all__ = ["write"]
