"""Executors for :func:`rackweave.sweep` over what has no ``submit`` of its own."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any, Callable


class RayExecutor(Executor):
    """Runs tasks as Ray tasks: ``RayExecutor(num_cpus=1, max_retries=3)``.

    ``options`` are those of ``ray.remote``. Ray itself runs a task again whose worker has died, up to ``max_retries`` times.
    """

    def __init__(self, **options: Any) -> None:
        import ray

        self._task = ray.remote(_call).options(**{"num_cpus": 1, **options})

    def submit(self, fn: "Callable[..., Any]", /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self._task.remote(fn, args, kwargs).future()


class PoolExecutor(Executor):
    """Runs tasks in a pool with ``apply_async``: ``multiprocessing.Pool`` or ``ray.util.multiprocessing.Pool``.

    The former does not report that a process of it has died, so that a sweep would wait for ever; prefer
    ``concurrent.futures.ProcessPoolExecutor``.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def submit(self, fn: "Callable[..., Any]", /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: "Future[Any]" = Future()
        future.set_running_or_notify_cancel()
        self._pool.apply_async(fn, args, kwargs, callback=future.set_result, error_callback=future.set_exception)
        return future


def _call(fn: "Callable[..., Any]", args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)
