"""Webhooks: the service posts events to URLs, in the format of Standard Webhooks 1.0.0.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md defines the format. A hook
follows the event feed, and the database stores the hook's position: the feed is the outbox, so a crash loses no event.
`hooks.py` stores hooks and has their API operations, `delivery.py` decides which process delivers and when,
`messages.py` builds the bodies, and `sending.py` sends one POST. urllib3 is required.
"""

from __future__ import annotations

from findings_service import HTTP_URL, PATTERNS, REGISTRY


def register() -> None:
    """Register the operations on webhooks, and the deliverer that runs with a server."""
    from findings_adapters.webhooks import delivery, hooks

    PATTERNS[hooks.HOOK_URL] = f"{PATTERNS[HTTP_URL]} and without a user or password in it"
    REGISTRY.add_operations(*hooks.OPERATIONS)
    REGISTRY.companions.append(delivery.Deliverer)
