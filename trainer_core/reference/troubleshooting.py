"""docs/troubleshooting.md: every failure that is known by name and every advice, made from the catalogue.

Part of `python -m trainer_core.reference`. No torch, no Qt.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Final

from trainer_core import failures
from trainer_core.messages import CATALOGUE, ExitCode, Message, Words
from trainer_core.messages.advice import ADVICE
from trainer_core.messages.failures import FAILURES

_OTHERS: Final = ("memory.out", "device.failed", "disk.full")  # told with more figures where they are known
_INTRODUCTION: Final = """\
# When something goes wrong · 出了问题时

{made}

A run that fails ends with one sentence: what happened, where, and what to do. Here are those for failures that come
from outside: the driver, the system, the disk, a library. `doctor` examines a machine; the end of `log.txt` in a run's
folder holds the details. Everything that was saved before is intact: `--resume` goes on from the newest good
checkpoint. Failures that may pass by themselves start the run again from there, up to `--restarts` times without
progress in between.

运行失败时会用一句话说明：发生了什么、在哪里、该怎么办。下面列出来自外部（驱动、系统、磁盘、库）的故障。
`doctor` 可检查本机；运行文件夹中 `log.txt` 的末尾有详细信息。此前保存的内容完好：`--resume` 从最新的完好检查点继续。
可能自行消失的故障会从那里自动重新开始，没有进展时最多 `--restarts` 次。
"""


class _Dots(string.Formatter):
    """Texts of the catalogue without their figures."""

    def get_value(self, key: int | str, args: object, kwargs: Mapping[str, object]) -> object:
        return "…"


def troubleshooting_page(made: str) -> str:
    """The page; `made` is the remark that it is generated."""
    lines = [_INTRODUCTION.format(made=made), "## By exit code · 按退出代码", ""]
    lines += ["| Windows | Linux | |", "| --- | --- | --- |", *_statuses(), ""]
    lines += ["## Failures · 故障", ""]
    for code in sorted((*FAILURES, *_OTHERS)):
        lines += _failure(code, CATALOGUE[code])
    lines += ["## Advice during a run · 运行中的建议", ""]
    for code in ADVICE:
        lines += [f"### {code}", "", *_words(CATALOGUE[code]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _statuses() -> Iterator[str]:
    """Codes of failures, with what a process returns that died of them."""
    for code in sorted({*failures.STATUSES.values(), *failures.SIGNALS.values()}):
        windows = [_status(status) for status, name in failures.STATUSES.items() if name == code]
        linux = [
            f"{failures.SIGNAL_NAMES[number]} (`{128 + number}`)"
            for number, name in failures.SIGNALS.items()
            if name == code
        ]
        yield f"| {', '.join(windows)} | {', '.join(linux)} | [{code}](#{code.replace('.', '')}) |"


def _status(status: int) -> str:
    """As people meet it: hexadecimal, and as Python and other programs show it, with and without a sign."""
    signed = f" or {status - 2**32}" if status >= 2**31 else ""
    return f"`0x{status:08X}` ({status}{signed})"


def _failure(code: str, message: Message) -> Iterator[str]:
    numbers = sorted({number for number, name in failures.WINERRORS.items() if name == code})
    facts = []
    if code in failures.OF_EXCEPTIONS:  # the others end the trainer before it can choose how
        facts += [f"exit code {int(message.exit_code)} ({ExitCode(message.exit_code).name.lower()})"]
    facts += ["starts again by itself · 自动重新开始"] if failures.is_transient(code) else []
    facts += [f"WinError {', '.join(map(str, numbers))}"] if numbers else []
    yield from (f"### {code}", "")
    if facts:
        yield from (f"*{' · '.join(facts)}*", "")
    yield from (*_words(message), "")


def _words(message: Message) -> Iterator[str]:
    yield f"{_plain(message.en, ' ')}"
    yield ""
    yield f"{_plain(message.zh, '')}"


def _plain(words: Words, between: str) -> str:
    what, do = (_Dots().vformat(text, (), {}) for text in (words.what, words.do))
    return f"{what}{between}{do}".strip()
