"""The REST API: a module for each kind of routes, and what they share of requests and answers."""
