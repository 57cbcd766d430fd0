# For nodes and for the server of a deployment (docs/deploy.md). First: python -m build --wheel
# A CPU build of torch, which is much smaller, comes with --build-arg PIP_EXTRA_INDEX_URL=... of PyTorch's own index.
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /home/federation
COPY dist/*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/*.whl)[flower,privacy]" \
    && rm /tmp/*.whl \
    && useradd --uid 1000 --home-dir /home/federation federation \
    && chown federation /home/federation
USER 1000
ENTRYPOINT ["fl-lightning"]
CMD ["--help"]
