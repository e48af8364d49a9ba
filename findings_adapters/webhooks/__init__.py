"""Webhooks: what happened is posted to those who want to know, after Standard Webhooks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md (1.0.0) is what a delivery
looks like. A hook follows the feed of events, and the place that it has come to stands in the database: the feed is the
outbox, so that a crash loses nothing. `hooks.py` is about the hooks and the operations on them, `delivery.py` about who
delivers and when, `messages.py` about what is told, and `sending.py` about one POST. It needs urllib3.
"""

from __future__ import annotations

from findings_service import HTTP_URL, PATTERNS, REGISTRY


def register() -> None:
    """Have hooks kept, and delivered to beside a server."""
    from findings_adapters.webhooks import delivery, hooks

    PATTERNS[hooks.HOOK_URL] = f"{PATTERNS[HTTP_URL]} and without a user or password in it"
    REGISTRY.add_operations(*hooks.OPERATIONS)
    REGISTRY.companions.append(delivery.Deliverer)
