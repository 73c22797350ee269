"""Running one rank in its process: it ends when it is done, when it fails, and when others fail."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from tiergnn.errors import Interrupted, RankError
from tiergnn.transport.failure import Failure
from tiergnn.transport.place import Place, join
from tiergnn.transport.waiting import LEAVE_FRAC, Watch, told

_LOOK_S = 0.2
EXIT_FAILED = 1
Target = Callable[..., None]  # (transport, *args)


def run_rank(place: Place, watch: Watch, store: Any, target: Target, *args: Any) -> int:
    """``target(transport, *args)`` as one rank; gives the exit code, for which see ``leave``."""
    _guard(place, watch)
    try:
        transport = join(place, watch, store)
        target(transport, *args)
        transport.close()
    except BaseException as error:
        return _ended(place, watch, error)
    return 0


def leave(code: int) -> NoReturn:
    """End this process at once: threads of a failed job may wait for ever."""
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run_under_torchrun(place: Place, watch: Watch, store: Any, target: Target, *args: Any) -> int:
    """``run_rank``, where nobody else tells why the job ended: who noticed it does."""
    code = run_rank(place, watch, store, target, *args)
    failure = watch.failure()
    if failure is not None and failure.by == place.rank:
        print(failure.error(), file=sys.stderr, flush=True)
    return code


def _ended(place: Place, watch: Watch, error: BaseException) -> int:
    if isinstance(error, RankError):
        return EXIT_FAILED  # told already
    if isinstance(error, Interrupted):
        return 128 + error.signum
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return 0
        cause, hint, kind = f"ended with {error.code!r}", "", ""
    else:
        cause, hint, kind = told(error)
    if os.environ.get("TIERGNN_DEBUG"):
        traceback.print_exception(error)
    watch.fail(
        Failure(
            rank=place.rank,
            by=place.rank,
            action=watch.action_of(place.rank),
            cause=cause,
            hint=hint,
            kind=kind,
        )
    )
    return EXIT_FAILED


def _guard(place: Place, watch: Watch) -> None:
    """End this process when the job has failed and it does not end by itself, or is orphaned."""

    def look() -> None:
        failed_at = None
        while True:
            time.sleep(_LOOK_S)
            if place.launched and place.board and watch.gone(place.size):
                os._exit(EXIT_FAILED)  # the launcher has died
            if failed_at is None and watch.failure() is not None:
                failed_at = time.monotonic()
            if failed_at and time.monotonic() - failed_at > place.timeout_s * LEAVE_FRAC:
                os._exit(EXIT_FAILED)

    threading.Thread(target=look, name="tiergnn-guard", daemon=True).start()
