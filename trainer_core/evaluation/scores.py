"""Scores of answers with bootstrap confidence intervals. No torch, no Qt.

Shapes: N rows, R resamples, S sufficient statistics of a corpus score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import without_reasoning
from trainer_core.protocol import Score

_RESAMPLES: Final = 1000
_CHUNK_COUNTS: Final = 2**22  # drawn, and converted to floats, at once
_LOW, _HIGH = 2.5, 97.5  # percentiles: a 95 % interval

Floats = npt.NDArray[np.float64]


def bleu() -> Any:
    """BLEU-4 (Papineni et al. 2002) with sacrebleu's `zh` tokenization, which keeps Latin words whole and splits
    Chinese into characters."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="zh", effective_order=True)


def chrf() -> Any:
    """chrF (Popović 2015): character n-grams up to 6, no word n-grams."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def is_exact(text: str, reference: str, finish_reason: str) -> bool:
    """Whether an answer equals its reference, without reasoning and outer white space. A truncated answer does not."""
    return finish_reason == "end" and without_reasoning(text).strip() == without_reasoning(reference).strip()


class Bootstrap:
    """Percentile bootstrap over rows (Efron 1979): 1000 resamples, the same for every score of the same rows and seed.

    Every score is computed from sums over rows, so a resample is a vector of how often each row is drawn: one byte,
    because more than 255 times is as good as impossible.
    """

    def __init__(self, rows: int, seed: int) -> None:
        generator, shares = np.random.default_rng(seed), np.full(rows, 1 / rows)
        size = max(1, _CHUNK_COUNTS // rows)
        sizes = (min(size, _RESAMPLES - start) for start in range(0, _RESAMPLES, size))
        self._chunks = [generator.multinomial(rows, shares, size=one).astype(np.uint8) for one in sizes]

    def score(self, stats_NS: npt.ArrayLike, compute: Callable[[Floats], float]) -> Score | None:
        """`compute` of the summed statistics, with its interval. None: it is not finite for these rows."""
        stats = np.asarray(stats_NS, np.float64)
        resampled = [compute(sums_S) for counts_RN in self._chunks for sums_S in counts_RN.astype(np.float64) @ stats]
        value, finite = compute(stats.sum(0)), [one for one in resampled if math.isfinite(one)]
        if not math.isfinite(value):
            return None
        low, high = np.percentile(finite, (_LOW, _HIGH)).tolist()
        return Score(value=value, low=low, high=high)

    def mean(self, values_N: Sequence[float]) -> Score | None:
        """Mean over rows."""
        return self.ratio(values_N, np.ones(len(values_N)))

    def ratio(self, sums_N: Sequence[float], weights_N: npt.ArrayLike) -> Score | None:
        """Sum over rows divided by the sum of the weights, such as tokens."""
        stats = np.column_stack([np.asarray(sums_N, np.float64), np.asarray(weights_N, np.float64)])
        return self.score(stats, lambda sums_S: float(sums_S[0] / sums_S[1]) if sums_S[1] else math.nan)

    def corpus(self, metric: Any, texts: Sequence[str], references: Sequence[str]) -> Score | None:
        """Corpus score of `bleu` or `chrf`."""
        stats = metric._extract_corpus_statistics(texts, [list(references)])
        return self.score(stats, lambda sums_S: float(metric._compute_score_from_stats(sums_S.tolist()).score))


def perplexity(loss: Score | None) -> Score | None:
    """exp of a mean loss, with its interval."""
    if loss is None:
        return None
    value, low, high = (math.exp(min(one, 700.0)) for one in (loss.value, loss.low, loss.high))
    return Score(value=value, low=low, high=high)
