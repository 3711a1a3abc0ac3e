"""A live page and JSON service for any retrievers: `serve`, `Service`, `application`."""

import os

# oneDNN, torch's library of matrix products, keeps code for up to 1,024 shapes, which texts of all lengths
# fill within an hour. It reads this once, at the process's first product.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

from paradigms.serve.application import PORT, application, serve
from paradigms.serve.service import Service
