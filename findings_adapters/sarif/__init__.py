"""SARIF import and export of findings: the media type `application/sarif+json`.

SARIF 2.1.0 is OASIS's format for the results of static analysis. The section numbers in this package are those of
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.

A result's external id does not change when its lines move. Importing an exported document restores each task, because
a result contains all fields of its task in a property of this service.
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
    """Register SARIF as a submission format and as a list format."""
    REGISTRY.submission_formats[SARIF] = SubmissionFormat(
        parse=parse, limit=operator.attrgetter("max_sarif"), judge=judge
    )
    exports.add(exports.ListFormat(media_type=SARIF, write=write_sarif, whole=True))
