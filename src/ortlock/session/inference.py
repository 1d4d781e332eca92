"""``ReproducibleSession``: ``onnxruntime.InferenceSession`` with the same bits every time, or a word on why not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from onnxruntime import InferenceSession

from ortlock import native
from ortlock.errors import NotReproducibleError
from ortlock.lanes import asynchronous
from ortlock.lanes.choice import lane_request
from ortlock.placement import resolve_placement
from ortlock.policy import Mode, resolve_mode
from ortlock.session.creation import create
from ortlock.session.guard import FALLBACK_OFF, Guard
from ortlock.session.known import KnownSession
from ortlock.session.lanes import check_open, close, move, on_lanes, retire_forked, start
from ortlock.session.lock import SessionLock, lock_request
from ortlock.session.random_ops import random_request

# Bound once: these run at every run().
_enter, _leave = native.enter, native.leave


class ReproducibleSession(KnownSession):
    """A drop-in for :class:`onnxruntime.InferenceSession` whose outputs repeat bit for bit.

    Args:
        path_or_bytes: model file or serialized model, as in the original. So are the other positional arguments and
            every keyword argument but those below.
        sess_options: only read; what ortlock pins goes into a copy.
        providers: as in the original.
        provider_options: as in the original.
        mode: ``observe``, ``pin`` or ``strict`` (:class:`ortlock.Mode`); None takes ``ORTLOCK_MODE``, else ``pin``.
        lockfile: path of a lockfile (docs/lockfile.md); None for none.
        lock_mode: ``replay`` (the default) runs what the lockfile holds for this environment, ``record`` also adds
            what is missing, ``update`` chooses everything anew and writes that down.
        placement: ``cpu`` runs nodes that have no deterministic CUDA kernel on the CPU provider, or rewrites them to
            standard operators, in a copy of the model in memory; ``off`` leaves them. None: ``cpu`` in strict only.
        random_ops: ``error`` (the default) leaves operators that draw at random (RandomNormal, RandomUniform, their
            Like forms, Bernoulli, Multinomial, Dropout in training mode) as they are: each run goes on with the
            sequence, so strict refuses them and pin reports them. ``restart`` starts every run from the seed, so that
            equal calls give equal bytes: in memory the nodes become a generator without a state, whose numbers are not
            the ones that ONNX Runtime draws. A node without a seed gets one from its position in the model.
        lanes: how many runs may go on at a time, each on a lane with a session, a stream and an arena of its own
            (docs/threads.md); further ones wait for their turn. 1 is exactly serial. None: on CUDA up to
            ``ortlock.lanes.choice.DEFAULT_LANES`` as threads need them and while the device has plenty of memory left,
            on the CPU no lanes, as threads are safe there.
        stream_priority: ``normal`` or ``high``, of the lanes' CUDA streams.

    Raises:
        ValueError: ``mode``, ``lock_mode``, ``placement`` or ``random_ops`` names none or does not go with the mode,
            or ``lanes`` is no number of lanes.
        TypeError: ``lockfile`` is no path.
        DeviceLostError: the CUDA context of this process is lost.
        LockfileError: the lockfile is not there to replay, is damaged, is for another model, or is to be recorded in a
            folder that is not there or cannot be written to.
        NotReproducibleError: in strict, where it is known already that the bits cannot be promised; with
            ``random_ops="restart"`` in every mode, where a node that draws at random cannot be made to start anew.
        Exception: everything that the original raises, unchanged.

    Warns:
        ReproducibilityWarning: in pin, once for each cause: a setting was overridden, ONNX Runtime fell back to the
            CPU, CUDA was asked for and is not there, a nondeterministic plan runs.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        mode: str | None = None,
        lockfile: str | os.PathLike[str] | None = None,
        lock_mode: str | None = None,
        placement: str | None = None,
        random_ops: str = "error",
        lanes: int | None = None,
        stream_priority: str = "normal",
        **kwargs: Any,
    ) -> None:
        chosen = resolve_mode(mode)
        request = lock_request(lockfile, lock_mode, chosen)
        guard = Guard(
            chosen,
            SessionLock(request) if request is not None else None,
            lane_request(lanes, stream_priority, chosen),
            places=resolve_placement(placement, chosen),
            random_ops=random_request(random_ops, chosen),
        )
        if guard.mode is Mode.STRICT and int(kwargs.get("enable_fallback", 0)) == 1:
            raise _fallback_refused("enable_fallback=1")
        guard.keywords = {name: kwargs[name] for name in ("disabled_optimizers",) if name in kwargs}
        self._ortlock = guard
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)
        guard.ready = True

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """Compute the predictions, as in the original.

        Raises:
            NotReproducibleError: in strict, where cuDNN has no deterministic plan for an operation.
        """
        guard = self._ortlock
        if (lanes := guard.lanes) is not None:
            gate = lanes.gate
            try:
                outputs = gate.run(lanes, InferenceSession.run, output_names, input_feed, run_options)
            except BaseException as error:
                guard.run_failed(error)
                raise
            if outputs is not None:
                if gate.events != guard.seen:
                    guard.plans_changed(gate.events)
                return outputs
        previous = _enter(guard.number)
        try:
            if lanes is None:
                outputs = super().run(output_names, input_feed, run_options)
            else:
                outputs = lanes.call(InferenceSession.run, output_names, input_feed, run_options=run_options)
        except BaseException as error:
            _leave(previous)
            guard.run_failed(error)
            raise
        if (events := _leave(previous)) != guard.seen:
            guard.plans_changed(events)
        return outputs

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """Compute the predictions on OrtValues, as in the original; raises as :meth:`run`."""
        guard = self._ortlock
        previous = _enter(guard.number)
        try:
            if (lanes := guard.lanes) is None:
                outputs = super().run_with_ort_values(output_names, input_dict_ort_values, run_options)
            else:
                run = InferenceSession.run_with_ort_values
                outputs = lanes.call(run, output_names, input_dict_ort_values, run_options=run_options)
        except BaseException as error:
            _leave(previous)
            guard.run_failed(error)
            raise
        if (events := _leave(previous)) != guard.seen:
            guard.plans_changed(events)
        return outputs

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Compute the predictions into bound outputs, as in the original; raises as :meth:`run`."""
        guard = self._ortlock
        previous = _enter(guard.number)
        try:
            if (lanes := guard.lanes) is None:
                super().run_with_iobinding(iobinding, run_options)
            else:
                lanes.call_bound(InferenceSession.run_with_iobinding, iobinding, run_options)
        except BaseException as error:
            _leave(previous)
            guard.run_failed(error)
            raise
        if (events := _leave(previous)) != guard.seen:
            guard.plans_changed(events)

    def run_with_ortvaluevector(
        self, run_options: Any, feed_names: Any, feeds: Any, fetch_names: Any, fetches: Any, fetch_devices: Any
    ) -> None:
        """Compute the predictions into a vector of OrtValues, as in the original; raises as :meth:`run`."""
        guard = self._ortlock
        previous = _enter(guard.number)
        try:
            if (lanes := guard.lanes) is None:
                super().run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)
            else:
                lanes.call(_run_vector, feed_names, feeds, fetch_names, fetches, fetch_devices, run_options=run_options)
        except BaseException as error:
            _leave(previous)
            guard.run_failed(error)
            raise
        if (events := _leave(previous)) != guard.seen:
            guard.plans_changed(events)

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        """Compute the predictions on a thread of ONNX Runtime's, as in the original.

        Keep the session until the callback has returned: ONNX Runtime can hang where it is dropped before. The inputs
        are kept here, which ONNX Runtime does not do. In strict, the error text that ``callback`` receives also says
        where no deterministic plan was left.

        With lanes it runs on a thread of ortlock's, holds a lane until the results are there, and the session may be
        dropped meanwhile.
        """
        guard = self._ortlock
        check_open(guard)
        try:
            if guard.lanes is not None and asynchronous.submit(
                self, partial(start, guard), output_names, input_feed, callback, user_data, run_options
            ):
                return None
        except Exception:
            # Closed meanwhile, it is that which is told.
            check_open(guard)
            raise
        if callback is None or callable(callback):
            callback = _finisher(guard, callback, input_feed)
        native.begin_async(guard.number)
        try:
            return super().run_async(output_names, input_feed, callback, user_data, run_options)
        except BaseException:
            # ONNX Runtime refused it at once: the callback will not come.
            native.end_async(guard.number)
            raise

    async def arun(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """Compute the predictions without blocking the event loop; returns and raises as :meth:`run`."""
        begin = partial(start, self._ortlock)
        return await asynchronous.run(begin, self.run, output_names, input_feed, run_options)

    def io_binding(self) -> Any:
        """Return an ``onnxruntime.IOBinding``, as in the original; with lanes it belongs to lane 0."""
        binding = on_lanes(self._ortlock, lambda lanes: lanes.binding())
        return super().io_binding() if binding is None else binding

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Make the session anew on other providers, as in the original; waits for the runs under way."""
        set_them = super().set_providers
        move(self, self._ortlock, lambda: set_them(providers, provider_options))

    def close(self) -> None:
        """Wait for the runs that hold a lane, and give up memory and streams; harmless when repeated.

        Without lanes it does not wait: a run under way keeps what it needs until its end.
        What is called later, and runs that still wait for a lane, raise :class:`ortlock.SessionClosedError`.
        """
        close(self, self._ortlock)

    def __enter__(self) -> ReproducibleSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def enable_fallback(self) -> None:
        """Enable ONNX Runtime's fallback, as in the original.

        Raises:
            NotReproducibleError: in strict.
        """
        if self._ortlock.mode is Mode.STRICT:
            raise _fallback_refused("enable_fallback()")
        super().enable_fallback()

    def _ortlock_retire(self, text: str) -> None:
        retire_forked(self, self._ortlock, text)

    def _create_inference_session(self, providers: Any, provider_options: Any, disabled_optimizers: Any = None) -> None:
        # ONNX Runtime comes here from the constructor, from set_providers() and for each of its fallbacks.
        def stock(names: Any, options: Any) -> None:
            super(ReproducibleSession, self)._create_inference_session(names, options, disabled_optimizers)

        create(self, self._ortlock, stock, providers, provider_options)


def _run_vector(session: Any, *arguments: Any, run_options: Any) -> None:
    InferenceSession.run_with_ortvaluevector(session, run_options, *arguments)


def _finisher(guard: Guard, callback: Callable[..., Any] | None, input_feed: Any) -> Callable[..., Any]:
    """Return what run_async() calls back: the bookkeeping, then the caller's callback.

    It keeps the inputs: ONNX Runtime reads their memory on its own thread and would not keep it from being freed and
    used again. It must not keep the session: the last reference could then be dropped on one of the session's own
    threads, which would wait for itself.
    """
    inputs = [*input_feed.values()] if isinstance(input_feed, Mapping) else []

    def finished(results: Any, user_data: Any, error: str) -> None:
        native.end_async(guard.number)
        inputs.clear()
        try:
            results, error = guard.finished(results, error, _leave(_enter(guard.number)))
        finally:
            if callback is not None:
                callback(results, user_data, error)

    return finished


def _fallback_refused(subject: str) -> NotReproducibleError:
    return NotReproducibleError(subject, FALLBACK_OFF, "Leave it out, or use mode='pin', which warns when it happens.")
