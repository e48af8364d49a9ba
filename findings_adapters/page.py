"""The web page on which people triage findings.

The folder `page` contains its files: plain HTML, CSS and JavaScript modules (https://html.spec.whatwg.org/), which use
only the API. This module registers them with the service, which serves them unchanged. Findings contain untrusted
text. Therefore each response has a Content-Security-Policy (level 3, https://www.w3.org/TR/CSP3/) that allows scripts
from this service and connections to it only; images may come from any host.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import quote

import flask

from findings_service import PAGE_FOLDER, REGISTRY, ApiRequest, Response, WrongMethod

HEADERS = {
    # Evidence may be images of other hosts; the page loads those only after a click.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: http: https:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def file_response(body: bytes, media_type: str, request: ApiRequest) -> Response:
    """Return the response with a file of the page. It has an ETag: browsers revalidate their copy on each use.

    A request for the page without the final slash is redirected, because the page's links are relative to it.

    :raises WrongMethod: if the method is not GET or HEAD.
    """
    if request.method not in ("GET", "HEAD"):
        raise WrongMethod("GET, HEAD")
    environ = dict(request.environ)
    requested = environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"]
    if request.route == "/" and not requested.endswith("/"):
        return Response(308, {"Location": f"{quote(requested.rpartition('/')[2], encoding='latin-1')}/"})
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
    """Register a function that serves each file of the page, by its path."""
    for file in FOLDER.rglob("*"):
        if kind := MEDIA_TYPES.get(file.suffix):
            name, content = file.relative_to(FOLDER).as_posix(), file.read_bytes()
            path = "/" if name == "index.html" else f"{PAGE_FOLDER}{name}"
            REGISTRY.page_files[path] = partial(file_response, content, kind)
