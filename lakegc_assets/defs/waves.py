"""``gc_waves``: makes up for ticks of ``gc_schedule`` that failed, and notifies of lost waves.

Dagster remembers that a tick failed, for whatever reason, and does not evaluate it again.
"""

import json
from typing import Final

import dagster as dg

from lakegc_assets.defs.automation_state import FailedTick, failed_ticks
from lakegc_assets.defs.collection import Collection, remembered
from lakegc_assets.defs.connections import built
from lakegc_assets.defs.execution import Resources
from lakegc_assets.defs.notices import Document, Outbox, document
from lakegc_assets.defs.schedules import OPEN, name_of, requests_of_wave, wave_at
from lakegc_assets.errors import LakegcError

#: What became of a failed tick.
_MADE_UP: Final = "made up"
_WAITS: Final = "waits"
_LOST: Final = "lost"


def waves_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_waves``. It makes the resource of lakeFS in its tick: its failure is reported, too."""
    policies, names = collection.policies, collection.names
    zones = {name_of(zone, policies, names): zone for zone in policies.crons()}

    @collection.sensor(
        "gc_waves",
        300,
        "Starts what a failed tick of gc_schedule should have started, for 24 hours; posts to a "
        "URL, or mails, which waves were lost.",
        running=True,
        job_name=names.of("gc"),
    )
    def waves(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        moment = collection.now()
        known = remembered(context)
        seen = known.get("ticks", {})
        outbox = Outbox(collection.notices, known.get("waiting", {}), moment)
        origin = context.code_location_origin
        location = origin.location_name if origin else None
        failed = {
            _key(tick): tick
            for tick in failed_ticks(context.instance, moment - 2 * OPEN, location)
            if tick.schedule in zones
        }
        states = {key: state for key, state in seen.items() if key in failed}
        requests: list[dg.RunRequest] = []
        error = None
        pending = [t for key, t in failed.items() if states.get(key) not in (_MADE_UP, _LOST)]
        open_ = [tick for tick in pending if moment - tick.at < OPEN]
        if open_:
            try:
                wanted = names.resources("lakefs")
                with built(collection.resources, context.instance, wanted) as found:
                    there = collection.collected(Resources(found, names).lakefs.config())
                requests = [
                    request
                    for name, zone in zones.items()
                    if (missed := {wave_at(tick.at) for tick in open_ if tick.schedule == name})
                    for request in requests_of_wave(
                        context.instance, there, collection, zone, moment, missed
                    )
                ]
                states |= {_key(tick): _MADE_UP for tick in open_}
            except LakegcError as raised:
                error = raised
        for tick in pending:
            key = _key(tick)
            lost = moment - tick.at >= OPEN
            # What waits for a person is reported at once, what may pass when it is too late.
            if lost or (error and not error.transient and states.get(key) != _WAITS):
                states[key] = _LOST if lost else _WAITS
                made = _notice(tick, str(error) if error and not lost else tick.error, lost=lost)
                owned = {**made, "owners": policies.for_all.owners}
                outbox.add(f"{key} {states[key]}", document=owned)
                context.log.error("%s", made["text"])
        outbox.deliver(context.log)
        changed = states != seen or outbox.waiting != known.get("waiting", {})
        # What waits for a person fails the tick, once its notice is delivered.
        if error is not None and not error.transient and not changed:
            raise error
        otherwise = f"tried again in five minutes: {error}" if error else "no tick has failed"
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else outbox.reason(otherwise),
            cursor=json.dumps({"ticks": states, "waiting": outbox.waiting}, sort_keys=True),
        )

    return waves


def _key(tick: FailedTick) -> str:
    return f"{tick.schedule} {wave_at(tick.at)}"


def _notice(tick: FailedTick, why: str, *, lost: bool) -> Document:
    wave = wave_at(tick.at)
    if lost:
        return document(
            "wave",
            f"wave {wave} was lost",
            f"{tick.schedule} could not start it, nor could gc_waves in the 24 hours after it: "
            f"{why}",
            "mend what the sentence says; repositories are collected with the next wave, or by the "
            "job gc",
            wave=wave,
        )
    until = f"{tick.at + OPEN:%Y-%m-%d %H:%M} UTC"
    return document(
        "wave",
        f"wave {wave} could not be started",
        f"{tick.schedule} could not start it: {why}",
        f"mend what the sentence says: gc_waves then starts the wave, until {until}",
        wave=wave,
    )
