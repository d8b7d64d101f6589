"""A browser's key for a protected page: the form that asks for it, and the cookie that keeps it."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from antiphon.serve.access.security import origin_allowed, page_headers

COOKIE: Final = "antiphon_key"
COOKIE_S: Final = 30 * 86_400

_FORM: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Access key</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>
body{{max-width:22rem;margin:16vh auto;padding:0 1.25rem;font:1rem/1.5 system-ui;text-align:center}}
body{{background:light-dark(#f7f4ee,#12161b);color:light-dark(#1b222c,#ece8df)}}h1{{font:400 2rem/1.2 serif}}
input,button{{font:inherit;box-sizing:border-box;width:100%;margin-top:.75rem;padding:.8rem;border-radius:2rem}}
button{{border:0;background:light-dark(#1b222c,#ece8df);color:light-dark(#fffdf9,#12161b)}}
</style>
<h1>Access key</h1><p>{words}</p><form method="post" action=""><label>Key <input name="key" type="password"
required autofocus autocomplete="current-password"></label> <button>Continue</button></form></html>
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"


def cookie_key(request: web.Request) -> str | None:
    """The key in a request's cookie; None if the server's own page did not send the request."""
    is_ours = origin_allowed(request.headers.get("Origin"), request.headers.get("Host"), ())
    return (is_ours and request.cookies.get(COOKIE)) or None


def key_form(request: web.Request, words: str) -> web.Response:
    """The form as a 401 response; ``words`` is the reason."""
    headers = page_headers(request.headers.get("Host"))
    headers |= {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    headers["WWW-Authenticate"] = 'Bearer realm="antiphon"'
    return web.Response(status=401, text=_FORM.format(words=words), content_type="text/html", headers=headers)


def keep_key(request: web.Request, key: str) -> web.HTTPSeeOther:
    """The answer to a valid key, which sets a cookie for the server's own page only and redirects to the
    page.
    """
    found = web.HTTPSeeOther(".")
    found.set_cookie(
        COOKIE, key, max_age=COOKIE_S, httponly=True, samesite="Strict", secure=request.secure, path="/"
    )
    return found
