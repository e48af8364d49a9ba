"""The page on which people work through findings, in a browser.

It is made of the files in the folder `page` beside this one, plain HTML, CSS and JavaScript modules
(https://html.spec.whatwg.org/), which use the API alone. This module registers them with the service, which serves
them unchanged. What findings hold was written by strangers, so each file goes out with a
Content-Security-Policy (level 3, https://www.w3.org/TR/CSP3/) under which the browser runs the page's own scripts
alone, and speaks to this service alone, but for pictures.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import quote

import flask

from findings_service import (
    PAGE_FOLDER,
    REGISTRY,
    ApiRequest,
    Response,
    WrongMethod,
)

HEADERS = {
    # Pictures are evidence; those of other hosts are fetched on a click only.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: http: https:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def answer(body: bytes, media_type: str, request: ApiRequest) -> Response:
    """Answer a request for a file. Browsers ask again each time whether they have the present one.

    Whoever leaves out the last slash of the prefix is sent on: what the page refers to is relative to that.

    :raises WrongMethod: for another method than GET and HEAD.
    """
    if request.method not in ("GET", "HEAD"):
        raise WrongMethod("GET, HEAD")
    environ = dict(request.environ)
    asked = environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"]
    if request.route == "/" and not asked.endswith("/"):
        return Response(308, {"Location": f"{quote(asked.rpartition('/')[2], encoding='latin-1')}/"})
    response = flask.Response(body, mimetype=media_type, headers={"Cache-Control": "no-cache", **HEADERS})
    response.add_etag()
    response.make_conditional(environ)
    return Response(response.status_code, dict(response.get_wsgi_headers(environ)), response.get_data())


FOLDER = Path(__file__).resolve().with_suffix("")
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}


def register() -> None:
    """Have the files answered."""
    for file in FOLDER.rglob("*"):
        if kind := MEDIA_TYPES.get(file.suffix):
            name, content = file.relative_to(FOLDER).as_posix(), file.read_bytes()
            path = "/" if name == "index.html" else f"{PAGE_FOLDER}{name}"
            REGISTRY.page_files[path] = partial(answer, content, kind)
