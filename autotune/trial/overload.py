"""When the load is to be lowered: figures that say more of the client, the machine or a full queue than of a candidate.

In: a judged record and its levels. Out: the same record, or one of outcome `client_limited` with the cause and what to
do, of which the sampler is told nothing.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autotune.measure.audit import CLIENT_LIMITED
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import Failure, Fault, LevelRecord, Outcome, Phase, RequestRecord, TrialRecord

LOST_RATIO = 0.01  # of the requests: beyond that the load is another than the one asked for
HOST_LIMITS = {
    os.strerror(number).lower(): remedy
    for number, remedy in {
        errno.EMFILE: "raise the limit of open files (ulimit -n 65536)",
        errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
        errno.EADDRNOTAVAIL: "give the client more ports (sysctl net.ipv4.ip_local_port_range)",
        errno.ENOBUFS: "give the machine more memory for sockets",
        errno.ENOMEM: "give the machine more memory",
    }.items()
}
"""What a client that reached a limit of its machine says of a request, as `load.connection.reason` words it."""
REFUSALS = {429: "too many requests", 503: "service unavailable"}


def lower_the_load(record: TrialRecord, objective: ObjectiveSpec, levels: Sequence[LevelRecord]) -> TrialRecord:
    """Return `record`, of outcome `client_limited` and with a remedy where the load was too much to judge by.

    A server's refusals (429, 503) are judged where an SLO limits errors, and too much only where none does: latencies
    of those that were let in say nothing of the rest.
    """
    requests = [request for level in levels for request in level.requests]
    found = _host_limit(requests) or (None if _judges_errors(objective) else _refused(requests)) or _slow_client(record)
    if found is None:
        return record
    cause, remedy = found
    failure = Failure(
        outcome=Outcome.CLIENT_LIMITED,
        fault=Fault.LOAD,
        phase=Phase.LOAD,
        cause=cause,
        remedy=f"{remedy}, or lower the load",
    )
    return replace(record, outcome=Outcome.CLIENT_LIMITED, failure=failure)


def _judges_errors(objective: ObjectiveSpec) -> bool:
    return any(slo.metric == "error_ratio" for slo in objective.slos)


def _host_limit(requests: Sequence[RequestRecord]) -> tuple[str, str] | None:
    errors = Counter(request.error for request in requests if request.error in HOST_LIMITS)
    if sum(errors.values()) <= LOST_RATIO * len(requests):
        return None
    error, count = errors.most_common(1)[0]
    return f"{count} of {len(requests)} requests could not be sent from this machine: {error}", HOST_LIMITS[str(error)]


def _refused(requests: Sequence[RequestRecord]) -> tuple[str, str] | None:
    statuses = Counter(request.status for request in requests if request.status in REFUSALS)
    if sum(statuses.values()) <= LOST_RATIO * len(requests):
        return None
    status, count = statuses.most_common(1)[0]
    words = f"{count} of {len(requests)} requests were refused: {status} {REFUSALS[status or 0]}"
    return words, "limit error_ratio by an SLO"


def _slow_client(record: TrialRecord) -> tuple[str, str] | None:
    doubts = () if record.verdict is None else record.verdict.untrusted
    why = next((text for text in doubts if text.startswith(CLIENT_LIMITED)), None)
    return None if why is None else (why, "leave cores idle for the load client")
