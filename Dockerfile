# The page as an unprivileged user on a read-only file system.
#
#   docker build -t saliscope .
#   docker run --read-only --tmpfs /tmp:size=3g --cap-drop ALL --security-opt no-new-privileges -m 6g -p 7860:7860 saliscope
#
# Limits: 6 GB of memory (1 GB for the page and the built-in model, 1 GB for each of two decoders, the rest for batches),
# two processors, 3 GB of uploads, which are deleted after an hour. The built-in model needs no network.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /app
# Exact versions with hashes, made by `make lock`. On x86-64, torch includes CUDA: start with --gpus all for NVIDIA GPUs.
COPY pre-requirements.txt ./
RUN pip install --require-hashes -r pre-requirements.txt
COPY app.py README.md ./
COPY explainers explainers
COPY saliscope saliscope
COPY models models
COPY assets assets
RUN python -m compileall -q explainers saliscope models \
    && useradd --system --no-create-home --uid 10001 saliscope

USER 10001
ENV HOME=/tmp GRADIO_TEMP_DIR=/tmp/uploads TORCH_HOME=/tmp/torch PYTHONDONTWRITEBYTECODE=1 \
    SALISCOPE_OFFLINE=1 SALISCOPE_MONITORING=1 SALISCOPE_LOG_FORMAT=json
EXPOSE 7860
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/healthz', timeout=4)"]
CMD ["python", "app.py", "--host", "0.0.0.0", "--port", "7860"]
