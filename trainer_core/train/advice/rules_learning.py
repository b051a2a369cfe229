"""Advice on learning: losses, gradients, data that is cut."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import mean, median
from typing import Any, Final

from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import folder_name
from trainer_core.train.advice.rule import Rule, RuleMatch, RunHistory, Verdict, lower_rate, percent, round_significant

_MIN_BAD_STEPS: Final = 3
_BAD_STEP_WINDOW: Final = 200  # steps

_SPIKE_LOSSES: Final = 20  # reports for the usual loss
_SPIKE_DEVIATIONS: Final = 6.0  # a healthy loss stays within three or four
_SPIKE_SHARE: Final = 0.15  # of the loss: a settled run has hardly any deviation

_MIN_LOSS: Final = 0.02  # nats: the data is memorized, and shares of the loss mean nothing

_TREND_WINDOW: Final = 20  # reports; the second half is compared with the first
_RISE: Final = 0.05  # of the loss
_NOISE: Final = 3.0  # standard errors of the difference, roughly
_DIVERGED: Final = 1.2  # times the loss of a uniform prediction
_BAD_SHARE: Final = 0.05  # of the steps: far above chance
_HARD_CLIPPED: Final = 5.0  # times grad_clip: slightly above it is common and harmless
_HARD_CLIPPED_SHARE: Final = 0.8  # of the reports

_MIN_RISES: Final = 3  # consecutive evaluations above the best: fewer are noise
_EVAL_RISE: Final = 1.02  # times the best eval loss
_TRAIN_FALL: Final = 0.99  # times the train loss at the best evaluation

_PLATEAU_EVALS: Final = 5
_MIN_GAIN: Final = 0.002  # of the loss, over all of them: less is within the noise of an evaluation
_MIN_RATE_SHARE: Final = 0.5  # of the peak: below it, a schedule ends learning on purpose

_CUT_SHARE: Final = 0.05  # of the samples; a few long ones are normal


class NotFinite(Rule[protocol.Step | protocol.BadStep], code="advice.not_finite", activate_after=1, clear_after=1):
    """Gradients are repeatedly not finite."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=_MIN_BAD_STEPS)

    def evaluate(self, event: protocol.Step | protocol.BadStep, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Step):
            return False if self._steps and event.step - self._steps[-1] > _BAD_STEP_WINDOW else None
        if event.kind != "not_finite":
            return None
        self._steps.append(event.step)
        distance = abs(self._steps[-1] - self._steps[0])
        if len(self._steps) < _MIN_BAD_STEPS or distance > _BAD_STEP_WINDOW:
            return None
        params = {"count": _MIN_BAD_STEPS, "steps": distance + 1, "rate": run.config.learning_rate}
        return RuleMatch({**params}, lower_rate(run))


class LossSpike(Rule[protocol.Step], code="advice.loss_spike", activate_after=2, clear_after=5):
    """The loss jumps far above its usual value and does not return at once."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_SPIKE_LOSSES)  # without spikes

    def evaluate(self, event: protocol.Step, run: RunHistory) -> Verdict:
        if event.loss is None or not run.is_warm:
            return None
        if len(self._losses) < _SPIKE_LOSSES // 2:
            self._losses.append(event.loss)
            return None
        usual, deviation = _median_and_deviation(self._losses)
        if event.loss - usual > max(_SPIKE_DEVIATIONS * deviation, _SPIKE_SHARE * abs(usual), _MIN_LOSS):
            params = {"step": event.step, "loss": round_significant(event.loss), "usual": round_significant(usual)}
            return RuleMatch({**params}, {} if run.config.grad_clip else {"grad_clip": 1.0})
        self._losses.append(event.loss)
        return False


class RateTooHigh(Rule[protocol.Step], code="advice.rate_high", clear_after=10):
    """After the warm-up the loss rises, or steps are repeatedly skipped or clipped hard."""

    def __init__(self) -> None:
        self._reports: deque[protocol.Step] = deque(maxlen=_TREND_WINDOW)

    def evaluate(self, event: protocol.Step, run: RunHistory) -> Verdict:
        if event.loss is None or not run.is_warm:
            return None
        self._reports.append(event)
        if len(self._reports) < _TREND_WINDOW:
            return None
        uniform = math.log(run.ready.vocab_size) if run.ready and run.ready.vocab_size > 1 else math.inf
        if params := self._evidence(uniform, run.config.grad_clip):
            return RuleMatch({**params, "rate": run.config.learning_rate}, lower_rate(run))
        return None if event.loss > uniform else False  # worse than a uniform prediction: not recovered

    def _evidence(self, uniform: float, grad_clip: float) -> dict[str, protocol.Param]:
        """Figures of the message; empty: no problem. `uniform`: loss of a uniform prediction, nats."""
        reports, half = list(self._reports), _TREND_WINDOW // 2
        losses = [report.loss or 0.0 for report in reports]
        first, deviation = _median_and_deviation(losses[:half])
        second = median(losses[half:])
        noise = _NOISE * deviation * (2 / half) ** 0.5
        bad = sum(report.bad_steps for report in reports[1:]) / max(1, reports[-1].step - reports[0].step)
        hard = [bool(grad_clip) and (report.grad_norm or 0.0) > _HARD_CLIPPED * grad_clip for report in reports]
        clipped = mean(hard)
        rises = second - first > max(_RISE * abs(first), noise, _MIN_LOSS)
        diverged = min(first, second) > _DIVERGED * uniform
        if not (rises or diverged or bad >= _BAD_SHARE or (clipped >= _HARD_CLIPPED_SHARE and second >= first)):
            return {}
        shares = {"bad": percent(min(1.0, bad)), "clipped": percent(clipped)}
        guess = round(uniform, 1) if math.isfinite(uniform) else "?"
        return {"before": round_significant(first), "now": round_significant(second), "guess": guess, **shares}


class Overfitting(Rule[protocol.Eval], code="advice.overfitting", activate_after=1, clear_after=1):
    """The eval loss rises while the train loss falls."""

    def __init__(self) -> None:
        self._best_loss, self._best_step = math.inf, 0
        self._train_loss = 0.0  # at the best evaluation
        self._rises = 0

    def evaluate(self, event: protocol.Eval, run: RunHistory) -> Verdict:
        if event.loss is None or not run.train_losses:
            return None
        train_loss = mean(run.train_losses)
        if event.loss < self._best_loss:
            self._best_loss, self._best_step = event.loss, event.step
            self._train_loss, self._rises = train_loss, 0
            return False
        self._rises = self._rises + 1 if event.loss > self._best_loss else 0
        has_risen = self._rises >= _MIN_RISES and event.loss >= _EVAL_RISE * self._best_loss
        if not has_risen or train_loss > _TRAIN_FALL * self._train_loss:
            return None
        best = folder_name(self._best_step)
        losses = {"best": round_significant(self._best_loss, 4), "now": round_significant(event.loss, 4)}
        saved = run.checkpoint is not None and best in run.checkpoint.kept
        params: dict[str, protocol.Param] = {"checkpoint": best if saved else "–", "best_step": self._best_step}
        return RuleMatch({**params, **losses}, {"max_steps": self._best_step} if self._best_step else {})


class Plateau(Rule[protocol.Eval], code="advice.plateau", activate_after=1, clear_after=1):
    """The eval loss no longer falls although the learning rate is high."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_PLATEAU_EVALS)
        self._best = math.inf  # before those

    def evaluate(self, event: protocol.Eval, run: RunHistory) -> Verdict:
        if event.loss is None or not run.is_warm or run.config.lr_schedule == "plateau":
            return None
        if len(self._losses) == _PLATEAU_EVALS:
            self._best = min(self._best, self._losses[0])
        self._losses.append(event.loss)
        best = self._best
        if not math.isfinite(best):
            return None
        if best > 0 and (best - min(self._losses)) / best >= _MIN_GAIN:
            return False
        is_rising = max(self._losses) > _EVAL_RISE * best
        if is_rising or run.learning_rate < _MIN_RATE_SHARE * run.peak_learning_rate:
            return None
        losses = {"before": round_significant(best, 4), "now": round_significant(event.loss, 4)}
        is_constant = run.config.lr_schedule == "constant"
        return RuleMatch({"evaluations": _PLATEAU_EVALS, **losses}, {"lr_schedule": "cosine"} if is_constant else {})


class Truncated(Rule[protocol.Ready], code="advice.truncated", activate_after=1):
    """Many samples are longer than a sequence."""

    def evaluate(self, event: protocol.Ready, run: RunHistory) -> Verdict:
        total, cut = event.train_documents + event.validation_documents, event.truncated + event.dropped
        if event.task == "pretrain" or total <= 0 or cut < _CUT_SHARE * total:
            return None
        limit = run.config.max_seq_len
        # Twice the length in half as many sequences: the same tokens at a time, in about the same memory.
        settings = {"max_seq_len": 2 * limit, **(run.halve_batch() if run.batch_size > 1 else {})}
        return RuleMatch({"count": cut, "total": total, "percent": percent(cut / total), "limit": limit}, settings)


def _median_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Median, and a standard deviation that is robust to outliers (MAD)."""
    middle = median(values)
    return middle, 1.4826 * median(abs(value - middle) for value in values)


RULES: Final[tuple[type[Rule[Any]], ...]] = (NotFinite, Truncated)
LOSS_RULES: Final[tuple[type[Rule[Any]], ...]] = (LossSpike, RateTooHigh, Overfitting, Plateau)
"""Rules for losses that measure progress."""
