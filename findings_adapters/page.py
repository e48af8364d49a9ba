"""The web page on which people triage findings.

The folder `page` contains its files: plain HTML, CSS and JavaScript modules (https://html.spec.whatwg.org/), which use
only the API. This module registers them with the service. Findings contain untrusted text. Therefore each response has
a Content-Security-Policy (level 3, https://www.w3.org/TR/CSP3/) that allows scripts from this service and connections
to it only; images may come from any host.

The path of each file contains a version, a hash of all files, so that browsers keep the files without asking again (RFC
8246). Only `index.html` is revalidated. It preloads all modules; otherwise a browser would request a module only after
the modules that import it. Comments and indentation are left out, an eighth of the modules. Responses are compressed
for clients that accept gzip. Responses of the API are not: some contain secrets beside text of strangers, and the
compressed length would reveal them (https://breachattack.com).
"""

from __future__ import annotations

import gzip
import hashlib
import re
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
    "Vary": "Accept-Encoding",
}


def file_response(content: bytes, packed: bytes, media_type: str, request: ApiRequest) -> Response:
    """Return the response with a file of the page, compressed if the client accepts gzip. Each form has its own ETag.

    A request for the page without the final slash is redirected, because the page's links are relative to it.

    :raises WrongMethod: if the method is not GET or HEAD.
    """
    if request.method not in ("GET", "HEAD"):
        raise WrongMethod("GET, HEAD")
    environ = dict(request.environ)
    requested = environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"]
    if request.route == "/" and not requested.endswith("/"):
        return Response(308, {"Location": f"{quote(requested.rpartition('/')[2], encoding='latin-1')}/"})
    caching = "no-cache" if request.route == "/" else "public, max-age=31536000, immutable"
    response = flask.Response(content, mimetype=media_type, headers={"Cache-Control": caching, **HEADERS})
    if flask.Request(environ).accept_encodings["gzip"]:  # its quality, which may be 0
        response.data, response.content_encoding = packed, "gzip"
    response.add_etag()
    response.make_conditional(environ)
    return Response(response.status_code, dict(response.get_wsgi_headers(environ)), response.get_data())


FOLDER = Path(__file__).resolve().with_suffix("")
OMITTED = re.compile(rb"(?m)^[ \t]*(?:(?://.*|/\*(?:[^*]|\*(?!/))*\*/)\n)?")
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}


def register() -> None:
    """Register functions that serve the page, with links to its versioned files, and these files."""
    sources = [file for file in sorted(FOLDER.rglob("*")) if file.suffix in MEDIA_TYPES]
    files = {file.relative_to(FOLDER).as_posix(): OMITTED.sub(b"", file.read_bytes()) for file in sources}
    folder = f"{PAGE_FOLDER}{hashlib.sha256(b''.join(files.values())).hexdigest()[:12]}/"
    contents = {f"{folder}{name}": content for name, content in files.items()}
    start = (FOLDER / "index.html").read_text("utf-8").replace('"page/', f'"{folder[1:]}')
    modules = [path[1:] for path in contents if path.endswith("js") and path[1:] not in start]
    links = "".join(f'<link rel="modulepreload" href="{path}">' for path in modules)
    contents["/"] = start.replace("</head>", f"{links}</head>").encode()
    for path, content in contents.items():
        kind, packed = MEDIA_TYPES.get(Path(path).suffix, "text/html"), gzip.compress(content, mtime=0)
        REGISTRY.page_files[path] = partial(file_response, content, packed, kind)
