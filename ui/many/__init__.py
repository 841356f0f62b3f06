"""Many pictures at once: uploads or a zip explained by the page's settings, ending in the report of a data set.

The run and the report are `dataset`'s; here are the tab, its turn in the queue, and what an archive may hold.
"""
