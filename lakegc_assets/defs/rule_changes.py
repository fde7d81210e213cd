"""``gc_rules``: a mark of each repository whose retention rules were changed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.collection import Collection, collected, remembered
from lakegc_assets.defs.round_robin import RoundRobin, looked_at
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.models import Repository

#: In the cursor: the known rules of each repository; no repository can have this name.
RULES: Final = "_rules"


def rules_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_rules``, which requests the rules of each repository from the server."""
    policies = collection.policies

    @collection.sensor(
        "gc_rules",
        600,
        "Marks a repository whose retention rules were changed. Sweeps nothing.",
        "lakefs",
        job_name=collection.names.of("gc_mark"),
    )
    def rules(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lakefs, memory = collection.of(context).lakefs.config(), remembered(context)
        known: dict[str, dict[str, Any]] = memory.get(RULES, {})
        turns = RoundRobin(collection.names.of("gc_rules"), memory, collection.now())
        client = lakefs.connect()
        there = {one.id: one for one in collected(lakefs, policies)}

        def look(name: str) -> str | LakegcError:
            try:
                return _digest(client.gc_rules(name), policies.of(name).retain)
            except LakegcError as error:
                return error

        looked, requests = turns.look(there, look), []
        turns.require_any(looked)
        now = {name: known[name] for name in there if name in known}
        for name, digest in looked.items():
            if isinstance(digest, LakegcError):
                context.log.warning("%s: its rules cannot be read: %s", name, digest)
                continue
            last = known.get(name)
            now[name] = found = _next(last, there[name], digest)
            if last is not None and found["changes"] > last["changes"]:
                run = f"rules-{found['made']}-{found['changes']}-{digest[:8]}"
                requests.append(
                    collection.request(name, run, run_key=f"{name}/{run}", job="gc_mark")
                )
        otherwise = f"no rules were changed: {looked_at(looked, there)}"
        cursor = {RULES: now, **turns.to_json(there)}
        return collection.started(requests, otherwise, json.dumps(cursor, sort_keys=True))

    return rules


def _next(before: Mapping[str, Any] | None, repository: Repository, digest: str) -> dict[str, Any]:
    """The digest of a repository's rules, and the number of their changes since it was seen."""
    if before is None or before["made"] != repository.creation_date:
        return {"made": repository.creation_date, "changes": 0, "rules": digest}
    changed = before["rules"] != digest
    return {**before, "changes": before["changes"] + changed, "rules": digest}


def _digest(rules: Mapping[str, Any] | None, retain: Mapping[str, Any]) -> str:
    both = [rules, retain] if retain else rules
    return hashlib.sha256(json.dumps(both, sort_keys=True).encode()).hexdigest()
