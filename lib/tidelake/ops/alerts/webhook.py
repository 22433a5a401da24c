"""Send what changed to an address that takes JSON: Slack's, or whatever takes its shape."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from tidelake.config.secrets import resolved
from tidelake.errors import UsageError

_TIMEOUT_SECONDS = 5.0
# Pauses before the second and the third try.
_PAUSES = (1.0, 2.0)


def address_of(reference: str) -> str:
    """Find the address that a reference stands for.

    Raises:
        UsageError: The variable is not set, or holds no address; the message has not its value.
    """
    found = resolved({"alerts.webhook": reference})["alerts.webhook"]
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"alerts.webhook stands for {reference}, which holds no http:// or https:// address."
        )
    return found


def deliver(
    address: str,
    body: Mapping[str, Any],
    *,
    timeout: float = _TIMEOUT_SECONDS,
    pauses: tuple[float, ...] = _PAUSES,
) -> str:
    """POST a body; again after pauses, where the server is away or says that it is to blame.

    Args:
        address: Where to.
        body: What to send, as JSON.
        timeout: Seconds for each try.
        pauses: Seconds before each further try.

    Returns:
        Empty when it was taken, else why not, without the address: it is a secret.
    """
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tidelake"}
    for pause in (*pauses, None):
        request = urllib.request.Request(address, data=data, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"it answers {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, HTTPException, ValueError) as error:
            problem = f"it does not answer: {getattr(error, 'reason', None) or error}"
        if pause is not None:
            time.sleep(pause)
    return problem
