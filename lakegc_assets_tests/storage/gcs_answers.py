"""What Google's service answers, for tests that write its answers."""

from __future__ import annotations

import json

from lakegc_assets_tests.storage.conftest import Answer


def refusal(status: int, reason: str) -> Answer:
    errors = [{"reason": reason, "message": "m"}]
    return Answer(status, json.dumps({"error": {"message": f"told {reason}", "errors": errors}}))
