"""The page on which people work through findings, in a browser.

It is made of the files in the folder `page` beside this one, plain HTML, CSS and JavaScript modules
(https://html.spec.whatwg.org/), which stand on the API and on nothing else. This room hands them to the service, which
serves them as they are. What findings hold was written by strangers, so each file goes out with a
Content-Security-Policy (level 3, https://www.w3.org/TR/CSP3/) under which the browser runs the page's own scripts
alone, and speaks to this service alone, but for pictures.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import findings_service as heart

__all__ = ["FOLDER", "HEADERS", "read_files"]

FOLDER = Path(__file__).resolve().with_suffix("")
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: http: https:",  # evidence; pictures of other hosts are fetched on a click only
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def read_files() -> dict[str, heart.PageFile]:
    """Return the files of the page by the path that each has below the service's own: `/` for the page itself."""
    files = {}
    for file in sorted(FOLDER.rglob("*")):
        if media_type := MEDIA_TYPES.get(file.suffix):
            name = file.relative_to(FOLDER).as_posix()
            body = file.read_bytes()
            files["/" if name == "index.html" else f"{heart.PAGE_FOLDER}{name}"] = heart.PageFile(
                body=body,
                etag=hashlib.sha256(body).hexdigest()[:32],
                headers={**HEADERS, "Content-Type": f"{media_type}; charset=utf-8"},
            )
    return files


heart.PAGE_FILES.update(read_files())
