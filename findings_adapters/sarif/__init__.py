"""What scanners write and code scanning reads: findings as SARIF in and out.

SARIF 2.1.0 is OASIS's format for the results of static analysis; the sections named here are those of
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. This module adds to the service one form in which
findings may be submitted and a list of tasks be answered, `application/sarif+json`.

A result has an identity that outlives moved lines. What this module has written it reads back as it was: a result
carries its task's fields under a name of ours.
"""

from __future__ import annotations

import operator

import findings_features.exports as exports
from findings_adapters.sarif.admitted import judge
from findings_adapters.sarif.reading import parse
from findings_adapters.sarif.writing import write_sarif
from findings_service import REGISTRY, SubmissionFormat

SARIF = "application/sarif+json"


def register() -> None:
    """Have findings come as SARIF, and lists of them go out so, too."""
    REGISTRY.submission_formats[SARIF] = SubmissionFormat(
        parse=parse, limit=operator.attrgetter("max_sarif"), judge=judge
    )
    exports.add(exports.ListFormat(media_type=SARIF, write=write_sarif, whole=True))
