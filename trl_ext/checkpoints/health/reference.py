"""A checkpoint beside its reference: the base model, or another checkpoint of the run."""

from collections.abc import Iterator

from trl_ext.checkpoints.drift import Drift
from trl_ext.checkpoints.groups import by_group
from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule, counted, listed, named
from trl_ext.monitor.alerts import Severity

_GROWN, _EXPLODED = 3.0, 10.0  # norm by the reference's
_FAR = 1.0  # relative drift of a group: more was changed than there was


def nothing_moved(case: Case) -> Iterator[HealthFinding]:
    drifts = case.measured.drifts
    if case.is_adapter or len(drifts) < len(case.measured.tensors) / 2:
        return  # what was trained is not among what was compared
    if drifts and not any(drift.moved for drift in drifts.values()):
        yield HealthFinding(
            "nothing_moved", Severity.WARNING, f"all {len(drifts):,} tensors equal the reference",
            "Training changed nothing: look at learning_rate, at frozen parameters, and whether an adapter was merged.",
            numbers={"tensors": len(drifts)},
        )  # fmt: skip


def grown(case: Case) -> Iterator[HealthFinding]:
    times = []
    for name, drift in case.measured.drifts.items():
        own = case.measured.tensors[name]
        if drift.reference and own.tensor.elements > 1 and own.norm / drift.reference > _GROWN:
            # what starts close to zero, such as a bias, may grow
            share = own.norm / own.finite**0.5
            if share > 1e-2 or len(own.tensor.shape) > 1:
                times.append((own.norm / drift.reference, name))
    if times:
        most, name = max(times)
        yield HealthFinding(
            "norm_exploded", Severity.ERROR if most > _EXPLODED else Severity.WARNING,
            f"'{name}' has {most:,.1f} times the norm it has in the reference ({counted(times)} more than {_GROWN:g})",
            "Training diverged: lower learning_rate, and go back to an earlier checkpoint.", name,
            {"times": most, **named([name for _, name in times])},
        )  # fmt: skip


def far(case: Case) -> Iterator[HealthFinding]:
    measured = case.measured
    groups = [(g.drift, g.name) for g in by_group(measured) if g.drift is not None] if measured.drifts else []
    strayed: list[tuple[Drift, str]] = [
        (drift, name) for drift, name in groups if drift.relative > _FAR and drift.reference and drift.moved
    ]
    if strayed:
        drift, name = max(strayed, key=lambda pair: pair[0].relative)
        yield HealthFinding(
            "drift_far", Severity.WARNING,
            f"the weights of group {name} differ from the reference by {drift.relative:.2f} times its norm (cosine "
            f"{drift.cosine:.2f})",
            "More was changed than there was: this is another model than the reference, or training diverged.",
            numbers={"relative": drift.relative, "cosine": drift.cosine},
        )  # fmt: skip


def other_tensors(case: Case) -> Iterator[HealthFinding]:
    measured = case.measured
    if case.is_adapter or case.reference is None:
        return
    if not measured.drifts and not measured.not_compared:
        yield HealthFinding(
            "reference_unrelated", Severity.WARNING, "the reference has no tensor in common with the checkpoint",
            "Name the base model of this checkpoint.",
        )  # fmt: skip
        return
    if measured.reshaped:
        yield HealthFinding(
            "shape_differs", Severity.WARNING,
            f"{counted(measured.reshaped)} have another shape than in the reference: {listed(measured.reshaped)}",
            "After resize_token_embeddings this is as it should be.", measured.reshaped[0], named(measured.reshaped),
        )  # fmt: skip
    for rule, names, what in (
        ("tensor_missing", measured.missing, "of the reference {} missing"),
        ("tensor_extra", measured.extra, "{} not in the reference"),
    ):
        if names:
            are = "is" if len(names) == 1 else "are"
            yield HealthFinding(
                rule, Severity.WARNING, f"{counted(names)} {what.format(are)}: {listed(names)}",
                "A head or a tied weight may be saved by one and not by the other; anything else is a loss.", names[0],
                named(names),
            )  # fmt: skip
    if measured.not_compared:
        yield HealthFinding(
            "tensor_not_compared", Severity.INFO,
            f"{counted(measured.not_compared)} are packed or cut in another way than in the reference: "
            f"{listed(measured.not_compared)}",
            "Compare checkpoints of one form.", measured.not_compared[0], named(measured.not_compared),
        )  # fmt: skip


RULES: tuple[Rule, ...] = (nothing_moved, grown, far, other_tensors)
