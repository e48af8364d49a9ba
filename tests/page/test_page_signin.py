"""Tests of the page: signing in, with a key or through a proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser import Findings, MakeUser, Proxy, in_every_browser, make_key, numbered, sign_in_script
from tests.clients import API, task
from tests.servers import command

# Signing in


def stored_copies(page: Any, key: str) -> tuple[int, int]:
    """Return how often a key occurs in the tab's session storage, and in the browser's local storage."""
    storages = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage)]")
    return storages[0].count(key), storages[1].count(key)


@in_every_browser
@pytest.mark.parametrize("remember", [False, True])
def test_key_is_stored_for_the_tab_or_for_all_tabs_as_chosen(make_user: MakeUser, remember: bool) -> None:
    user, addresses = make_user(locale="en"), list[str]()
    user.page.on("request", lambda request: addresses.append(request.url))
    for wrong in ("fts_wrong", "fts_…"):
        user.page.goto(user.url)
        user.page.get_by_label("API key").fill(wrong)
        user.press("Enter")
        user.expect_text("unknown, expired or revoked", "[role=alert]")
        assert stored_copies(user.page, wrong) == (0, 0)
    user.sign_in(user.key, remember)
    user.expect_text("Overview", "h1")
    assert stored_copies(user.page, user.key) == (not remember, remember)
    assert user.page.context.cookies() == []
    assert not any(user.key in address for address in [*addresses, user.page.url])
    assert {address.split("/")[2] for address in addresses} == {user.url.split("/")[2]}
    other = user.page.context.new_page()
    other.goto(user.url)
    other.locator("header.top").wait_for()
    assert stored_copies(other, user.key) == (0, remember)
    other.get_by_role("button", name="Account").click()
    other.get_by_role("button", name="Sign out").click()
    for page in (user.page, other):
        page.locator("form.signin").wait_for()
        assert stored_copies(page, user.key) == (0, 0)
    other.reload()
    other.locator("form.signin").wait_for()


@in_every_browser
def test_key_in_the_url_fragment_signs_in_and_is_removed_from_the_url(make_user: MakeUser, findings: Findings) -> None:
    user, other = make_user(locale="en"), make_key(findings.server, findings.type, "read")
    user.page.goto(f"{user.url}#key={user.key}")
    user.expect_text("first · default · full", ".me")
    assert (user.page.url, stored_copies(user.page, user.key)) == (user.url, (True, False))
    user.page.evaluate(f"location.hash = 'key={other}'")  # a link does not replace a valid session
    user.page.wait_for_url(user.url)
    user.expect_text("first · default · full", ".me")
    user.page.evaluate("sessionStorage.clear()")
    user.page.goto("about:blank")
    user.page.goto(f"{user.url}#key=fts_wrong")
    user.expect_text("unknown, expired or revoked", "[role=alert]")
    assert user.page.url == user.url


def test_revoked_key_keeps_typed_text_and_ignores_another_tabs_key(make_user: MakeUser, findings: Findings) -> None:
    server = findings.server
    keys = [make_key(server, f"tab{n}", "full", client) for n, client in enumerate(("default", "other"))]
    user = make_user(key=keys[0], locale="en")
    user.open_finding(findings, task())
    other = user.page.context.new_page()
    other.add_init_script(sign_in_script(server, keys[1]))
    other.goto(user.url)
    other.locator(".me", has_text="tab1 · other").wait_for(state="attached")
    user.press("c")
    user.type("Half an hour of thought")
    assert command("keys", "revoke", "tab0", "--db", str(server.db)).returncode == 0
    user.press("Control+Enter")
    user.expect_text("Sign in again", "dialog:last-of-type h2 >> nth=-1")
    message = json.dumps({"key": keys[1], "me": server.request("GET", f"{API}/me", key=keys[1]).json})
    other.evaluate(f"new BroadcastChannel('findings:key:{API}/').postMessage({message})")  # as signing in there does
    user.page.wait_for_timeout(200)
    user.expect_text("Sign in again", "dialog:last-of-type h2 >> nth=-1")
    user.expect_text("tab0 · default", ".me")
    user.sign_in(server.key)
    user.expect_text("Half an hour of thought", ".history")
    assert findings.history(0)[-1]["by"] == "first"


@pytest.mark.parametrize("level", ["read", "agent"])
def test_controls_that_the_key_level_does_not_allow_are_hidden(
    make_user: MakeUser, findings: Findings, level: str
) -> None:
    user = make_user(key=make_key(findings.server, f"only {level}", level))
    user.open_list(findings, *numbered(2))
    user.expect_text(f"only {level} · default · {level}", ".me")
    user.press("j", "x", "4", "a", "c", "1")
    reason = "read-only" if level == "read" else "of level agent"
    user.expect_text(f"Your key is {reason}. Triage needs a key of level triage.", ".toast")
    user.expect_none("dialog, .actions, input[type=checkbox], .top nav a:text-is('Webhooks')")
    user.press("Enter")
    user.expect_text("Finding 1", "h1")
    user.press("3")
    user.expect_none("main button:not(.quiet), dialog")
    assert findings.read(1)["status"] == "open"
    user.open("#/webhooks")
    user.expect_text("Page not found", "h1")
    user.expect_none("main form")


@in_every_browser
def test_proxy_replaces_sign_in_and_an_expired_session_keeps_typed_text(
    make_user: MakeUser, findings: Findings, proxy: Proxy
) -> None:
    user = make_user(locale="en")
    findings.report(task(title="One"))
    user.page.context.route("**/api/v1/**", proxy.forward)
    user.page.goto(f"{user.url}#/findings/{findings.ids[0]}")
    user.expect_text("One", "h1")
    user.expect_text("Ada Lovelace · default · full", ".me")
    user.expect_none("form.signin, button:text-is('Sign out')")
    for override in (
        {"status": 302, "headers": {"Location": "https://signin.example/"}},
        {"status": 200, "content_type": "text/html; charset=utf-8", "body": "<h1>Who are you?</h1>"},
        {"status": 401, "body": ""},
    ):
        draft = f"Half an hour of thought, until {override['status']}"
        user.press("c")
        user.type(draft)
        proxy.override = override
        user.press("Control+Enter")
        user.expect_text("You are signed out", "dialog:last-of-type >> nth=-1")
        proxy.override = None  # as the proxy does after a sign-in
        with user.page.context.expect_page() as opened:
            user.click("sign in in another tab", "link")
        opened.value.locator("h1", has_text="One").wait_for()
        user.expect_text(draft, ".history")
        opened.value.close()
    user.expect_text("Ada Lovelace (proxy-", ".history")
    assert [entry["user"] for entry in findings.history(0)] == [None, *["Ada Lovelace"] * 3]
    user.press("a")
    user.expect("#people option[value='Ada Lovelace']").to_have_count(1)
    user.type("Ada Lovelace")
    user.press("Enter")
    user.expect_text("Assigned to Ada Lovelace", ".lead")
    user.page.goto(f"{user.url}#/overview?projectType={findings.type}")
    user.expect_text("1 Assigned to me", ".figures li:last-child")
