"""What Google's service answers, for tests that write its answers."""

from __future__ import annotations

import json

from lakegc_assets_tests.storage.conftest import Answer


def refusal(status: int, reason: str, message: str = "") -> Answer:
    errors = [{"reason": reason, "message": "m"}]
    error = {"message": message or f"told {reason}", "errors": errors}
    return Answer(status, json.dumps({"error": error}))
