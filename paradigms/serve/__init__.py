"""A live page and JSON service for any retrievers: `serve`, `Service`, `application`."""

from paradigms.serve.service import PORT, Service, application, serve
