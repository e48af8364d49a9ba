"""Tests of the page with hostile texts."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser import Findings, MakeUser, PageUser, in_every_browser, open_view
from tests.clients import cases, task
from tests.servers import wait_until

# Hostile text

HOSTILE = cases(
    script="<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>",
    link="javascript:alert(4)//https://example.com/",
    template="${alert(5)} {{alert(6)}} <%= alert(7) %> \\u003cscript>",
    bidi="\u202egnirts lla\u2066 \u2067 user\u2069\u200f\u202d",
    word="W" * 10_000,
    controls="\x01\x08\x1b[31m\x7f\u2028\u2029\ufeff\ufffe\U000e0041",
    vnode='{"type": "script", "props": {"children": "alert(8)"}, "constructor": null, "__v": 1}',
    markdown=(
        "[x](javascript:alert(13)) ![x](http://127.0.0.1:9/picture.png) <javascript:alert(14)> https://[ https://\u202e\n"
        f"[a]: javascript:alert(15)\n[y][a] https://example.com/{'x' * 3000} {'**[`_' * 900}"
    ),
)


SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(11)'><script>alert(12)</script></svg>"


def hostile_task(text: str) -> dict[str, Any]:
    """Return a task that contains a text in every field."""
    links = [
        f"https://example.com/?{quote(text[:600])}",
        "https://example.com/#javascript:alert(9)",
        "ftp://example.com",
    ]
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", text)
    vnode = {"type": "script", "props": {"children": "alert(10)"}, "constructor": None, "__v": 1, "key": text}
    return task(
        title=text[:500],
        externalId=text[:256],
        description=text,
        evidence=[
            {"type": text[:64], "label": text[:500], "content": text},
            *({"type": "screenshot", "label": text[:500], "url": link} for link in links),
            {"type": "screenshot", "url": f"data:image/svg+xml,{quote(SVG)}"},
        ],
        remediation=[{"instruction": text}, {"instruction": "javascript:alert(12)"}],
        successCriteria=[{"description": text}],
        extensions={text[:200]: {text[:200]: [text, {text[:100]: [[[[text]]]]}]}, "vnode": vnode, "list": [vnode]},
        rule=line[:256],
        location=line[:1024],
        tags=[f"{line[:60]}{n}" for n in range(20)],
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_neither_runs_nor_breaks_the_layout(make_user: MakeUser, findings: Findings, text: str) -> None:
    body = {"label": text[:200], "description": text, "extensionSchema": {"description": text}}
    findings.send("PUT", f"project-types/{findings.type}", body)
    metadata = {"text": text, text[:100]: [text], "repository": text, "commit": text, "sourceUrl": text}
    run = findings.report(hostile_task(text), metadata=metadata, targetUrl=f"https://example.com/{quote(text[:600])}")
    findings.triage(0, status="dismissed", comment=text[:4000], assignee=text[:200])
    shared = "&".join(f"{name}={quote(str(findings.read(0)[name]))}" for name in ("rule", "location"))
    lists = [f"{name}?projectType={findings.type}" for name in ("findings", "runs")]
    user = make_user(360)
    user.open()
    for view in (
        *(*lists, f"{lists[0]}&{shared}", f"findings/{findings.ids[0]}", f"runs/{run}"),
        f"project-types/{findings.type}",
    ):
        open_view(user, f"#/{view}")
        user.expect_none(
            "[role=alert], main script, main [onerror], main [onload], [href^='javascript:' i], main iframe"
        )
        assert (user.overflow(1280), user.overflow(360)) == (0, 0), view


@in_every_browser
def test_csp_blocks_injected_scripts_and_foreign_requests(user: PageUser) -> None:
    user.open()
    inject = "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    user.page.evaluate(inject)
    user.page.evaluate("fetch('http://127.0.0.1:9/').catch(() => {})")
    assert user.page.evaluate("window.ran") is None

    def blocked() -> set[str]:
        user.page.wait_for_timeout(20)  # for messages of the browser to arrive
        return {*re.findall("(script|connect)-src 'self'", "\n".join(user.errors))}

    wait_until(lambda: blocked() == {"script", "connect"})
    user.errors.clear()
