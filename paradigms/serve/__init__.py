"""The live page and the JSON service over any retrievers: `serve`, `Service`, `application`."""

from paradigms.serve.service import PORT, Service, application, serve
