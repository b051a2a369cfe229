"""What the losses, gradients and data say about how a run learns."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from trainer_core import protocol
from trainer_core.train.advice.rule import Finding, Rule, RunHistory, Verdict, percent, round_significant

_BAD_STEPS: Final = 3  # one is left out and forgotten
_WITHIN: Final = 200  # steps

_LOSSES: Final = 20  # reports that the usual loss is taken from
_SPREADS: Final = 6.0  # times the usual spread: a healthy loss keeps within three or four
_SPIKE: Final = 0.15  # and of the loss itself: a run that has settled has hardly any spread

_LEAST: Final = 0.02  # nats: below that a model knows its data by heart, and shares of its loss mean nothing

_WINDOW: Final = 20  # reports; the second half is compared with the first
_RISEN: Final = 1.05  # a healthy loss falls, or stands within its noise
_NOISE: Final = 3.0  # standard errors of the difference, roughly
_GUESSING: Final = 1.2  # times the loss of a model that thinks every token equally likely: it has come apart
_BAD_SHARE: Final = 0.05  # of the steps left out: far more than chance finds
_HARD_CLIPPED: Final = 5.0  # times grad_clip: a norm a little above it is common and harmless
_MOSTLY: Final = 0.8  # of the reports
_LOWER_RATE: Final = 3.0  # about half a decade: small enough to keep learning, large enough to matter

_RISES: Final = 3  # evaluations in a row above the best: fewer are noise
_ABOVE: Final = 1.02  # of the best eval loss
_FALLS: Final = 0.99  # train loss against what it was at the best evaluation

_STANDS: Final = 5  # evaluations
_GAIN: Final = 0.002  # of the loss, over all of them: less is within the noise of an evaluation
_RATE_LEFT: Final = 0.5  # of the peak: below that a schedule brings learning to its end, as it should

_CUT: Final = 0.05  # of the samples; a few long ones are usual


class NotFinite(Rule):
    """Gradients that are no numbers come again and again."""

    code = "advice.not_finite"
    activate_after = 1
    clear_after = 1

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=_BAD_STEPS)

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Step) and self._steps:
            return False if event.step - self._steps[-1] > _WITHIN else None
        if not isinstance(event, protocol.BadStep) or event.kind != "not_finite":
            return None
        self._steps.append(event.step)
        if len(self._steps) < _BAD_STEPS or abs(self._steps[-1] - self._steps[0]) > _WITHIN:
            return None
        params = {"count": _BAD_STEPS, "steps": abs(self._steps[-1] - self._steps[0]) + 1}
        return Finding({**params, "rate": run.config.learning_rate}, lower_rate(run))


class LossSpike(Rule):
    """The loss jumps far above what it was, and does not come back at once."""

    code = "advice.loss_spike"
    activate_after = 2
    clear_after = 5

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_LOSSES)

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Step) or event.loss is None or not run.is_warm:
            return None
        if len(self._losses) < _LOSSES // 2:
            self._losses.append(event.loss)
            return None
        usual, spread = _middle(self._losses)
        if event.loss - usual > max(_SPREADS * spread, _SPIKE * abs(usual), _LEAST):
            fix: dict[str, Any] = {} if run.config.grad_clip else {"grad_clip": 1.0}
            return Finding(
                {"step": event.step, "loss": round_significant(event.loss), "usual": round_significant(usual)}, fix
            )
        self._losses.append(event.loss)
        return False


@dataclass(frozen=True, slots=True)
class _Report:
    loss: float
    steps: int  # that it is about
    bad: int
    hard_clipped: bool


class RateTooHigh(Rule):
    """After the warm-up the loss rises, or gradients keep being left out or cut to a fraction."""

    code = "advice.rate_high"
    activate_after = 3
    clear_after = 10

    def __init__(self) -> None:
        self._reports: deque[_Report] = deque(maxlen=_WINDOW)
        self._step: int | None = None

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Step) or not run.is_warm:
            return None
        steps, self._step = max(1, event.step - (self._step or event.step)), event.step
        if event.loss is None:
            return None
        clip = run.config.grad_clip
        hard = bool(clip and event.grad_norm is not None and event.grad_norm > _HARD_CLIPPED * clip)
        self._reports.append(_Report(event.loss, steps, event.bad_steps, hard))
        if len(self._reports) < _WINDOW:
            return None
        guessing = math.log(run.ready.vocab_size) if run.ready and run.ready.vocab_size > 1 else math.inf
        params = self._evidence(guessing)
        if params:
            return Finding({**params, "rate": run.config.learning_rate}, lower_rate(run))
        return None if event.loss > guessing else False  # a model that knows nothing yet has not recovered

    def _evidence(self, guessing: float) -> dict[str, protocol.Param]:
        """The figures that say so; empty: all is well. `guessing`: the loss of a model that knows nothing, nats."""
        half = _WINDOW // 2
        reports = list(self._reports)
        before = [report.loss for report in reports[:half]]
        now = [report.loss for report in reports[half:]]
        first, spread = _middle(before)
        second = median(now)
        noise = _NOISE * spread * (2 / half) ** 0.5
        bad = sum(report.bad for report in reports) / sum(report.steps for report in reports)
        clipped = sum(report.hard_clipped for report in reports) / len(reports)
        risen = second - first > max((_RISEN - 1) * abs(first), noise, _LEAST)
        apart = min(first, second) > _GUESSING * guessing
        if risen or apart or bad >= _BAD_SHARE or (clipped >= _MOSTLY and second >= first):
            shares = {"bad": percent(min(1.0, bad)), "clipped": percent(clipped)}
            guess = round(guessing, 1) if math.isfinite(guessing) else "?"
            return {"before": round_significant(first), "now": round_significant(second), "guess": guess, **shares}
        return {}


class Overfitting(Rule):
    """The eval loss rises while the train loss falls: it learns by heart."""

    code = "advice.overfitting"
    activate_after = 1
    clear_after = 1

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_LOSSES // 2)  # of training, newest reports
        self._best: protocol.Eval | None = None
        self._train_then = 0.0  # train loss at the best evaluation
        self._rises = 0
        self._saved: dict[int, str] = {}  # checkpoints that are there, by step

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        match event:
            case protocol.Step() if event.loss is not None:
                self._losses.append(event.loss)
            case protocol.Checkpoint():
                self._saved[event.step] = event.path
                self._saved = {step: path for step, path in self._saved.items() if path in (*event.kept, event.path)}
            case protocol.Eval() if event.loss is not None and self._losses:
                return self._judge(event, event.loss)
            case _:
                pass
        return None

    def _judge(self, event: protocol.Eval, loss: float) -> Verdict:
        train = sum(self._losses) / len(self._losses)
        if self._best is None or self._best.loss is None or loss < self._best.loss:
            self._best, self._train_then, self._rises = event, train, 0
            return False
        self._rises = self._rises + 1 if loss > self._best.loss else 0
        if self._rises < _RISES or loss < _ABOVE * self._best.loss or train > _FALLS * self._train_then:
            return None
        saved = self._saved.get(self._best.step)
        params = {
            "best": round_significant(self._best.loss, 4),
            "best_step": self._best.step,
            "now": round_significant(loss, 4),
        }
        return Finding(
            {**params, "checkpoint": saved or "–"}, {"max_steps": self._best.step} if self._best.step else {}
        )


class Plateau(Rule):
    """Nothing is gained any more, though the learning rate is still high."""

    code = "advice.plateau"
    activate_after = 1
    clear_after = 1

    def __init__(self) -> None:
        self._evals: deque[float] = deque(maxlen=_STANDS)
        self._best = math.inf  # eval loss before those
        self._rate = self._peak = 0.0

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Step):
            self._rate, self._peak = event.learning_rate, max(self._peak, event.learning_rate)
        if not isinstance(event, protocol.Eval) or event.loss is None or not run.is_warm:
            return None
        if len(self._evals) == _STANDS:
            self._best = min(self._best, self._evals[0])
        self._evals.append(event.loss)
        best = self._best
        if not math.isfinite(best) or run.config.lr_schedule == "plateau":
            return None
        if best > 0 and (best - min(self._evals)) / best >= _GAIN:
            return False
        if self._rate < _RATE_LEFT * self._peak or max(self._evals) > _ABOVE * best:  # the latter is no standing still
            return None
        fix: dict[str, Any] = {"lr_schedule": "cosine"} if run.config.lr_schedule == "constant" else {}
        return Finding(
            {"evaluations": _STANDS, "before": round_significant(best, 4), "now": round_significant(event.loss, 4)}, fix
        )


class Truncated(Rule):
    """Much of the data is longer than a sequence."""

    code = "advice.truncated"
    activate_after = 1

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Ready) or event.task != "sft":
            return None
        whole = event.train_documents + event.validation_documents
        lost = event.truncated + event.dropped
        if whole <= 0 or lost < _CUT * whole:
            return None
        longer = 2 * run.config.max_seq_len
        params = {"count": lost, "total": whole, "percent": percent(lost / whole), "limit": run.config.max_seq_len}
        # Twice the length in half as many sequences: the same tokens at a time, in about the same memory.
        fix = {"max_seq_len": longer, **(run.halve_batch() if run.batch_size > 1 else {})}
        return Finding(dict(params), fix)


def lower_rate(run: RunHistory) -> dict[str, Any]:
    """A third of the learning rate."""
    return {"learning_rate": round_significant(run.config.learning_rate / _LOWER_RATE, 2)}


def _middle(values: deque[float] | list[float]) -> tuple[float, float]:
    """Median, and the spread around it as a standard deviation would be, but deaf to outliers."""
    middle = median(values)
    return middle, 1.4826 * median(abs(value - middle) for value in values)


RULES: Final[tuple[type[Rule], ...]] = (NotFinite, LossSpike, RateTooHigh, Overfitting, Plateau, Truncated)
