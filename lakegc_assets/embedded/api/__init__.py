"""The REST API: one module for each kind of route, and shared code for requests and answers."""
