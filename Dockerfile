# The page as an unprivileged user on a read-only file system.
#
#   docker build -t saliscope .                                          for CPUs
#   docker build -t saliscope --build-arg TORCH=cu128 .                  for NVIDIA GPUs: run it with --gpus all
#   docker run --read-only --tmpfs /tmp:size=3g --cap-drop ALL --security-opt no-new-privileges -m 6g -p 7860:7860 saliscope
#
# Limits: 6 GB of memory (1 GB for the page and the built-in model, 1 GB for each of two decoders, the rest for batches),
# two processors, 3 GB of uploads, which are deleted after an hour. The built-in model needs no network.
FROM python:3.12-slim

ARG TORCH=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /app
COPY requirements.txt ./
RUN pip install --index-url "https://download.pytorch.org/whl/${TORCH}" torch torchvision \
    && pip install -r requirements.txt 'prometheus_client>=0.20'
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
