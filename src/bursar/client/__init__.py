"""A thin client of the HTTP interface: calls, retries, pages, problems."""

from bursar.client.http import ApiResponse, Client
from bursar.client.problem import Problem

__all__ = ["ApiResponse", "Client", "Problem"]
