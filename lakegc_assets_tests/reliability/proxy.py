"""An HTTP proxy in front of a real server, through which a test lets through what it wants.

It sits where a load balancer would: requests reach the server as they were signed, and every answer
can be changed, held back, cut in the middle or thrown away after the server has done its work.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from lakegc_assets_tests.http_server import Answer, Asked, Silence, serving

_TIMEOUT_S: Final = 60
#: What one connection tells the other side of it, and not the one behind.
_OF_A_CONNECTION: Final = {"connection", "transfer-encoding", "keep-alive", "expect"}


Ask = Callable[[], Answer]
#: Gets a request, and what forwards it to the server; tells what the client is to see.
Meddle = Callable[[Asked, Ask], Answer | Silence]


def leave_alone(_asked: Asked, ask: Ask) -> Answer:
    """Let everything through."""
    return ask()


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        address: of the server, ``host:port``.
        endpoint: URL of the proxy, without a slash at its end.
        meddle: what happens to requests; a test changes it at any time.
        asked: the requests that came, in their order.
    """

    address: str
    endpoint: str = ""
    meddle: Meddle = leave_alone
    asked: list[Asked] = field(default_factory=list)

    def forward(self, asked: Asked) -> Answer:
        """Ask the server."""
        connection = http.client.HTTPConnection(self.address, timeout=_TIMEOUT_S)
        try:
            connection.putrequest(
                asked.method, asked.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in asked.headers:
                if name.lower() not in _OF_A_CONNECTION:
                    connection.putheader(name, value)
            connection.endheaders(asked.body)
            found = connection.getresponse()
            headers = [h for h in found.getheaders() if h[0].lower() not in _OF_A_CONNECTION]
            return Answer(found.status, found.read(), headers)
        finally:
            connection.close()


@contextmanager
def proxied(address: str) -> Iterator[Proxy]:
    """Run a proxy in front of a server at ``host:port``."""
    proxy = Proxy(address)

    def respond(asked: Asked) -> Answer | Silence:
        proxy.asked.append(asked)
        return proxy.meddle(asked, lambda: proxy.forward(asked))

    with serving(respond) as proxy.endpoint:
        yield proxy
