"""No redirects for S3: a store that sends readers to another host is refused, not followed.

aiohttp would follow, to any host, where what comes is read as if the store that the user named had sent it.
"""

import functools
import importlib
from typing import Any


@functools.cache
def session_class() -> Any:
    """Aiobotocore's HTTP session, which hands a redirect back as what it is: an error of the store."""
    base: Any = importlib.import_module("aiobotocore.httpsession").AIOHTTPSession

    class StayingSession(base):  # type: ignore[misc]
        """Asks the host that it was given, and no other."""

        async def _get_session(self, proxy_url: Any) -> Any:
            return _Staying(await super()._get_session(proxy_url))

    return StayingSession


class _Staying:
    """The part of an aiohttp session that aiobotocore uses."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        return await self._session.request(*args, allow_redirects=False, **kwargs)
