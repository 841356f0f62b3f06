"""Our methods timed beside the peers that are installed; may import them and NumPy, and nothing imports this."""

import os

# The profiler that measures memory writes its own log lines into the table; to be said before torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("TQDM_DISABLE", "1")  # grad-cam draws progress bars
