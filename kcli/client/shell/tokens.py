"""Where tokens for OAUTHBEARER come from, and how they are obtained without blocking the event loop.

    source            each time
    ----------------  ------------------------------------------------------------------------------------------------
    FunctionSource    a function of the application; the asyncio clients also take an `async def`, which their loop runs
    FileSource        the content of a file, so that another program can renew it (Kafka: FileJwtRetriever)
    EndpointSource    a POST of OAuth's client credentials (RFC 6749, 4.4); a token is used for 80 % of its lifetime, and
                      to its end while the server gives no other

Functions, files and servers may block: each is asked on a thread of its own, which does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import math
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from kcli.client.security_config import TokenEndpoint
from kcli.network.events import ObtainToken, TokenObtained
from kcli.network.security import TokenSource

# Returns a token, a JWT as a rule.
TokenFunction = Callable[[], str | Awaitable[str]]
HTTP_TIMEOUT_S = 10.0
MOST_ANSWER_BYTES = 1024 * 1024
REFRESH_FACTOR = 0.8  # Kafka: sasl.login.refresh.window.factor


class TokenError(Exception):
    """A token that cannot be obtained; the message is a clause without a secret."""


def _token_of(found: object) -> str:
    """Return what a function or a server has given. Raises TypeError if it is not text."""
    if not isinstance(found, str):
        raise TypeError(f"oauth_token returned {type(found).__name__}, not the token as str")
    return found


class FunctionSource:
    """A function of the application."""

    def __init__(self, function: TokenFunction) -> None:
        self._function = function

    @property
    def is_async(self) -> bool:
        """Whether the event loop of the client runs the function."""
        return inspect.iscoroutinefunction(self._function)

    async def obtain_async(self) -> str:
        """Return a token of an asynchronous function. Raises as `obtain`."""
        found = self._function()
        return _token_of(found if isinstance(found, str) else await found)

    def obtain(self) -> str:
        """Return a token. Raises TypeError for another result, and what the function raises."""
        return _token_of(self._function())


class FileSource:
    """A file whose content is the token."""

    def __init__(self, url: str) -> None:
        self._path = unquote(urlsplit(url).path)

    def obtain(self) -> str:
        """Return the token. Raises TokenError."""
        try:
            return Path(self._path).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise TokenError(f"{self._path}: {getattr(error, 'strerror', None) or 'it is not a token'}") from None


class EndpointSource:
    """A server that gives tokens for the id and secret of a client."""

    def __init__(self, endpoint: TokenEndpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._token = ""
        self._refresh_s = self._expires_s = 0.0  # of the monotonic clock

    def obtain(self) -> str:
        """Return a token. Until it expires, the last one serves if the server gives no other. Raises TokenError."""
        with self._lock:
            if time.monotonic() >= self._refresh_s:
                try:
                    self._ask()
                except TokenError:
                    if time.monotonic() >= self._expires_s:
                        raise
            return self._token

    def _ask(self) -> None:
        # Loaded here: they take 50 ms, and most clients do not need them.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class NoRedirect(HTTPRedirectHandler):
            """Follows no redirection: another server would get the secret."""

            def redirect_request(self, *args: object) -> None:
                """Return None: the redirection is an error."""

        one = self._endpoint
        pair = (one.client_id, one.client_secret)
        credentials = ":".join(map(quote_plus, pair) if one.has_encoded_header else pair).encode()
        form = {"grant_type": "client_credentials"} | ({"scope": one.scope} if one.scope else {})
        headers = {
            "Authorization": "Basic " + base64.b64encode(credentials).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        begin_s = time.monotonic()
        try:
            request = Request(one.url, urlencode(form).encode(), headers)
            with build_opener(NoRedirect).open(request, timeout=HTTP_TIMEOUT_S) as answer:
                body = answer.read(MOST_ANSWER_BYTES)
        except HTTPError as error:
            raise TokenError(f"{one.name} answered {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            raise TokenError(f"{one.name}: {getattr(error, 'reason', None) or error}") from None
        try:
            found = json.loads(body)
            token, lifetime_s = _token_of(found["access_token"]), float(found.get("expires_in", 0))
            if math.isnan(lifetime_s):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TokenError(f"the answer of {one.name} is not JSON with access_token") from None
        self._token = token
        self._refresh_s, self._expires_s = begin_s + lifetime_s * REFRESH_FACTOR, begin_s + lifetime_s


def make_source(endpoint: TokenEndpoint | None, function: TokenFunction | None) -> TokenSource | None:
    """Return the source for the settings of a client, None if it needs no tokens."""
    if function is not None:
        return FunctionSource(function)
    if endpoint is None:
        return None
    return FileSource(endpoint.url) if endpoint.url.startswith("file:") else EndpointSource(endpoint)


class TokenObtainer:
    """Executes ObtainToken; `dispatch` takes the event on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, source: TokenSource, dispatch: Callable[[TokenObtained], None]) -> None:
        self._loop = loop
        self._source = source
        self._dispatch = dispatch
        self._tasks: set[asyncio.Task[None]] = set()

    def obtain(self, effect: ObtainToken) -> None:
        """Begin to obtain a token."""
        source = self._source
        if isinstance(source, FunctionSource) and source.is_async:
            task = self._loop.create_task(self._obtain_async(effect, source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            threading.Thread(target=self._obtain, args=(effect,), name="kcli-token", daemon=True).start()

    def close(self) -> None:
        """Obtain no more."""
        for task in self._tasks:
            task.cancel()

    async def _obtain_async(self, effect: ObtainToken, source: FunctionSource) -> None:
        try:
            found = TokenObtained(effect.request_id, await source.obtain_async())
        except Exception as error:
            found = _failed(effect, error)
        self._dispatch(found)

    def _obtain(self, effect: ObtainToken) -> None:
        try:
            found = TokenObtained(effect.request_id, self._source.obtain())
        except Exception as error:
            found = _failed(effect, error)
        try:
            self._loop.call_soon_threadsafe(self._dispatch, found)
        except RuntimeError:
            pass  # the loop was closed before


def _failed(effect: ObtainToken, error: Exception) -> TokenObtained:
    reason = str(error) if isinstance(error, TokenError) else f"{type(error).__name__}: {error}"
    return TokenObtained(effect.request_id, None, reason)
