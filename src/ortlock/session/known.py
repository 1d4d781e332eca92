"""What can be asked of a session beside runs: its report, digests, lockfile and evidence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxruntime import InferenceSession

from ortlock import native
from ortlock.arguments import check_names, check_outputs
from ortlock.digest import digest
from ortlock.policy import Mode
from ortlock.session.facts import report
from ortlock.session.guard import Guard
from ortlock.session.lanes import check_open
from ortlock.session.placing import measure_placement
from ortlock.words import counted

if TYPE_CHECKING:
    from typing import Unpack

    from ortlock.localise import Localised
    from ortlock.report import ReproducibilityReport
    from ortlock.verify import BatchClaim, Evidence
    from ortlock.verify.sessions import HowToVerify
    from ortlock.verify.subject import Feed


class KnownSession(InferenceSession):  # type: ignore[misc]  # ONNX Runtime has no type information.
    """An ``InferenceSession`` with ortlock's knowledge of it.

    Every method raises ``SessionClosedError`` once the session is closed, but for what names its settings.
    """

    _ortlock: Guard

    def __copy__(self) -> KnownSession:
        # As the original, whose copies share what they hold; copy.copy() would ask for the state otherwise.
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __getstate__(self) -> object:
        raise TypeError(
            f"cannot pickle {type(self).__name__!r} object, as onnxruntime.InferenceSession cannot: it belongs to this "
            "process. Pass the model's path and the arguments on, and make the session there."
        )

    @property
    def mode(self) -> Mode:
        """The mode in force."""
        return self._ortlock.mode

    def report(self) -> ReproducibilityReport:
        """Return what is known of this session's reproducibility up to now."""
        check_open(self._ortlock)
        return report(self, self._ortlock)

    def save_lockfile(self) -> int:
        """Write what was chosen since the last time to the lockfile now; return how many choices that were.

        A session that records writes by itself while it runs and when it ends; this is for whoever needs to know.

        Raises:
            ValueError: the session has no lockfile.
            LockfileError: it cannot be written, is damaged, or is for another model by now.
        """
        check_open(self._ortlock)
        lock = self._ortlock.lock
        if lock is None:
            raise ValueError("This session has no lockfile; give lockfile=PATH and lock_mode='record'.")
        return lock.write(native.records(self._ortlock.number), now=True)

    def measure_placement(self, input_feed: Mapping[str, Any], runs: int = 5) -> dict[str, float]:
        """Measure what the placed nodes cost, for the report; return milliseconds a run by node.

        A second session on the same model profiles ``runs`` runs after two more. ``copies`` stands for all copies
        between the devices. Empty where no node was placed.

        Raises:
            ValueError: ``runs`` is no whole number from 1 on.
            TypeError: ``input_feed`` is no mapping from input names to values.
            Exception: whatever ONNX Runtime raises.
        """
        check_open(self._ortlock)
        return measure_placement(self, self._ortlock, input_feed, runs)

    def digest(self, outputs: Sequence[Any], output_names: Sequence[str] | None = None) -> str:
        """Return ``sha256:<hex>`` over names, shapes, types and bytes of what a run returned.

        Args:
            outputs: the list that ``run`` or ``run_with_ort_values`` returned.
            output_names: the names passed to that run; None for all outputs of the model.

        Raises:
            ValueError: there are not as many outputs as names.
            TypeError: ``outputs`` is no list of outputs, such as one array by itself, or ``output_names`` is one text.
        """
        check_open(self._ortlock)
        outputs = check_outputs(outputs)
        names = check_names("output_names", output_names) or [output.name for output in self._outputs_meta]
        if len(names) != len(outputs):
            raise ValueError(
                f"{counted(len(outputs), 'output')} and {counted(len(names), 'name')} ({', '.join(names)}); "
                "pass the output_names that the run was given."
            )
        return digest(outputs, names)

    def verify(self, inputs: Feed | Sequence[Feed], **how: Unpack[HowToVerify]) -> Evidence:
        """Run new sessions like this one under stress, on these inputs, and compare all outputs bit by bit.

        What is found also goes into :meth:`report`. The reference is what this session gives.

        Args:
            inputs: one set of inputs by name, or several, e.g. of several shapes.
            how: ``runs`` under each stress (20 unless given), ``seconds`` for all, ``threads`` that share a session,
                ``stresses`` by name (``ortlock.verify.NAMES``), ``early_stop`` at the first difference (True),
                ``progress``, called after each step.

        Raises:
            ValueError: there are no inputs, a stress is not known, ``runs`` is no whole number from 1 on, ``threads``
                none from 1 to 1024, or ``seconds`` no time above 0 that ends.
            TypeError: ``inputs`` are no mappings from input names to values, or ``stresses`` is one text.
            Exception: what a run raises that should not fail.
        """
        check_open(self._ortlock)
        from ortlock.verify.sessions import verify_session

        return verify_session(self, inputs, **how)

    def batch_invariance(self, inputs: Feed, *, progress: Callable[[int, int], None] | None = None) -> BatchClaim:
        """Measure whether a row's bits depend on the batch that it travels in, in new sessions like this one.

        What is found also goes into :meth:`report`, as a claim of its own.

        Args:
            inputs: one set of inputs by name, the batch being the first axis; of fewer than 8 rows more are made.
            progress: called with how many nodes have been looked at, and of how many.

        Raises:
            ValueError: ``inputs`` lack inputs of the model.
            TypeError: they are no mapping from input names to values.
            GraphError: the model's graph cannot be read.
        """
        check_open(self._ortlock)
        from ortlock.verify.sessions import batch_of_session

        return batch_of_session(self, inputs, progress)

    def localise(self, inputs: Feed, *, runs: int = 4, sessions: int = 2) -> Localised:
        """Find the first node whose output differs from run to run, in new sessions like this one.

        Args:
            inputs: one set of inputs by name.
            runs: runs of each session.
            sessions: new sessions.

        Raises:
            ValueError: ``runs`` or ``sessions`` is no whole number from 1 on, or both are 1.
            TypeError: ``inputs`` are no mapping from input names to values.
            GraphError: the model's graph cannot be read.
        """
        check_open(self._ortlock)
        from ortlock.verify.sessions import localise_session

        return localise_session(self, inputs, runs=runs, sessions=sessions)


def _of_open_session(name: str) -> Callable[..., Any]:
    """Return a method of ``InferenceSession`` that hands out what close() takes away, and says so afterwards."""
    method: Callable[..., Any] = getattr(InferenceSession, name)

    @functools.wraps(method)
    def get(self: KnownSession) -> Any:
        value = method(self)
        if value is None:
            check_open(self._ortlock)
        return value

    return get


for _name in (
    "get_inputs",
    "get_outputs",
    "get_overridable_initializers",
    "get_modelmeta",
    "get_input_memory_infos",
    "get_output_memory_infos",
    "get_input_epdevices",
):
    # The last three came with later versions of ONNX Runtime.
    if hasattr(InferenceSession, _name):
        setattr(KnownSession, _name, _of_open_session(_name))
