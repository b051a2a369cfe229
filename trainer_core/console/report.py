"""What a terminal shows of a look at the data: figures, a histogram, and samples with what is learned marked.

A terminal without colours gets marks around what is learned; one whose encoding lacks blocks gets `#`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainer_core.console.words import visible
from trainer_core.messages import Language
from trainer_core.messages import data as messages_data
from trainer_core.messages.amounts import size
from trainer_core.protocol import BadRow, DataReport, LengthBin, SampleView, Source, Token

_BAR: Final = 40  # columns of the longest bar
_SAMPLE: Final = 500  # characters shown of a sample
_LEARNED: Final = ("[[", "]]")  # around what is learned, where colours cannot tell
_STYLES: Final = {"heading": "bold", "learned": "green", "given": "dim", "special": "bold cyan", "over": "yellow"}

_WORDS: Final[dict[str, tuple[str, str]]] = {
    "all": ("All of it was read, {size}: every figure is exact.", "已读取全部 {size}，所有数字都是准确值。"),
    "all_but_tokens": (
        "All of it was read, {size}. A tokenizer yet to be trained may count tokens a little differently.",
        "已读取全部 {size}。分词器若尚待训练，词元数届时可能略有出入。",
    ),
    "part": (
        "{read} of {size} were read: figures with {about} are estimates, the others are of that part.",
        "已读取 {size} 中的 {read}：带 {about} 的是估计值，其余是已读部分的数字。",
    ),
    "validation": ("validation data: ", "验证数据："),
    "files": ("{count} files", "{count} 个文件"),
    "skipped": ("left out: {count}", "未读取 {count} 个文件"),
    "documents": ("Documents", "文档"),
    "tokens": ("Tokens", "词元"),
    "split": ("to train on {train}, held back {held}", "训练 {train}，验证 {held}"),
    "divided": (
        "plain text: what is held back, and each stretch in between",
        "纯文本：留出的各段，以及它们之间的每一段",
    ),
    "characters": ("Characters", "字符"),
    "each": ("{figure} a token", "每词元 {figure}"),
    "vocabulary": ("Vocabulary", "词表"),
    "given": ("given: {path}", "指定：{path}"),
    "trained": ("trained on what was read", "由所读数据训练"),
    "trained_for_it": ("trained on the data", "由数据训练"),
    "duplicates": ("Duplicates", "重复"),
    "overlap": ("Overlap", "与训练重合"),
    "overlap_of": (
        "{count} of {total} validation rows are also in the training data",
        "{total} 行验证数据中有 {count} 行也在训练数据中",
    ),
    "bad": ("Unusable rows", "无法使用的行"),
    "first": ("the first: {position} of {path}, {reason}", "第一处：{path} 的{position}，{reason}"),
    "empty": ("Empty rows", "没有文本的行"),
    "undecodable": ("Undecodable", "无法解码"),
    "bytes": ("{count} bytes ({share})", "{count} 字节（{share}）"),
    "longer": ("Longer", "超长"),
    "longer_than": (
        "{count} documents have more than {limit} tokens ({share}), the longest {longest}",
        "{count} 篇超过 {limit} 个词元（{share}），最长 {longest}",
    ),
    "cut": ("Cut away", "截断"),
    "cut_from": ("{tokens} tokens of {count} samples ({share})", "{count} 个样本中的 {tokens} 个词元（{share}）"),
    "dropped": ("Left out", "舍弃"),
    "no_room": ("{count} samples: no room for a response", "{count} 个样本：放不下回答"),
    "turns": ("Tool calls", "工具调用"),
    "left_out_turns": (
        "{count} messages left out: the chat template cannot write them",
        "舍弃 {count} 条消息：对话模板无法写出",
    ),
    "left": ("Left over", "剩余"),
    "left_tokens": ("{count} tokens at the end make no whole sequence", "末尾 {count} 个词元不足一条序列"),
    "packed": ("Packed", "打包"),
    "packs": (
        "{count} sequences, {fill} filled; {alone} with one sample each",
        "{count} 条序列，填充 {fill}；每条一个样本时 {alone}",
    ),
    "lengths": ("Length of the documents in tokens", "文档长度（词元）"),
    "limit": ("sequence length {limit}", "序列长度 {limit}"),
    "steps": ("Steps", "步数"),
    "per_epoch": ("{steps} per epoch ({detail}), {total} in all", "每轮 {steps} 步（{detail}），共 {total} 步"),
    "full": ("{count} samples each", "每步 {count} 个样本"),
    "short": ("{count} of {samples} samples and a short one", "{count} 步各 {samples} 个样本，末步不满"),
    "default_batch": (
        "with the default batch: --preset, or --batch-size and --gradient-accumulation-steps, choose that of training",
        "按默认批大小计算；用 --preset 或 --batch-size、--gradient-accumulation-steps 指定训练所用的值",
    ),
    "per_step": ("{tokens} tokens a step", "每步 {tokens} 词元"),
    "samples": ("First samples, as the model gets them", "模型看到的前几个样本"),
    "colours": ("learned", "学习"),
    "marks": ("learned between {start} and {end}", "{start} 与 {end} 之间为学习的部分"),
    "more": ("… and {count} more tokens", "…… 还有 {count} 个词元"),
    "document": ("document {number}", "文档 {number}"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What a terminal can show."""

    language: Language
    colour: bool = True
    blocks: bool = True  # its encoding has ≈, … and block characters

    def say(self, key: str, **values: object) -> str:
        text = _WORDS[key][self.language == "zh"].format(**values)
        return text if self.blocks else text.replace("…", "...")

    @property
    def about(self) -> str:
        return "≈" if self.blocks else "~"


def lines(report: DataReport, look: Look) -> Iterator[Text]:
    """The report, line by line."""
    sizes = {"read": size(report.read_bytes), "size": size(report.bytes), "about": look.about}
    # Without a given tokenizer, a look trains its own on a part of the text.
    exact = "all" if report.tokenizer or report.prepared else "all_but_tokens"
    yield Text(look.say(exact if report.complete else "part", **sizes))
    for source in report.sources:
        yield Text("  " + visible(_source(source, look)))
    for source in report.validation_sources:
        yield Text(f"  {look.say('validation')}{visible(_source(source, look))}")
    yield Text()
    yield from _table([*_counts(report, look), *_trouble(report, look), *_fit(report, look), *_steps(report, look)])
    if report.lengths:
        yield Text()
        yield from _histogram(report, look)
    if report.samples:
        yield Text()
        yield _samples_heading(look)
        for number, sample in enumerate(report.samples, 1):
            yield from _sample(number, sample, look)


# --- figures ---------------------------------------------------------------------------------------


def _source(source: Source, look: Look) -> str:
    name = source.path if source.path.startswith("builtin:") else Path(source.path).name or source.path
    roles = [column if column == role else f"{role}: {column}" for role, column in source.used.items()]
    about = [
        "" if source.files == 1 else look.say("files", count=f"{source.files:,}"),
        source.format,
        source.compression,
        source.encoding,
        ", ".join(roles or source.columns),
        size(source.bytes),
        look.say("skipped", count=f"{source.skipped:,}") if source.skipped else "",
    ]
    split = f" ({source.split})" if source.split else ""
    return f"{name}{split}: " + " · ".join(filter(None, about))


def _counts(report: DataReport, look: Look) -> Iterator[tuple[str, str]]:
    def about(figure: int) -> str:
        return f"{figure:,}" if report.complete else f"{look.about} {figure:,}"

    def split(whole: int, train: int, held: int) -> str:
        return f"{about(whole)}   {look.say('split', train=about(train), held=about(held))}"

    total, read = report.total, report.read
    documents = split(total.documents, report.train_documents, report.validation_documents)
    divided = f"{about(total.documents)}   {look.say('divided')}"  # how many stretches a split has says nothing
    yield look.say("documents"), divided if report.divided else documents
    held = f" ({_share(report.validation_tokens, total.tokens)})"
    yield look.say("tokens"), split(total.tokens, report.train_tokens, report.validation_tokens) + held
    each = look.say("each", figure=f"{read.characters / max(1, read.tokens):.2f}")
    yield look.say("characters"), f"{about(total.characters)}   {each}"
    trained = "trained_for_it" if report.prepared else "trained"
    origin = look.say("given", path=report.tokenizer) if report.tokenizer else look.say(trained)
    yield look.say("vocabulary"), f"{report.vocab_size:,}   {visible(origin)}"


def _trouble(report: DataReport, look: Look) -> Iterator[tuple[str, str]]:
    share = _share(report.duplicates, report.read.rows)
    yield look.say("duplicates"), f"{report.duplicates:,} ({share})" if report.duplicates else "0"
    if report.overlap:
        overlap = {"count": f"{report.overlap:,}", "total": f"{report.validation_rows:,}"}
        yield look.say("overlap"), look.say("overlap_of", **overlap)
    if report.empty:
        yield look.say("empty"), f"{report.empty:,}"
    if report.bad:
        bad = report.first_bad
        told = {} if bad is None else _where_and_why(bad, look.language)
        yield look.say("bad"), f"{report.bad:,}" + (f"   {visible(look.say('first', **told))}" if told else "")
    if report.undecodable:
        share = _share(report.undecodable, report.read_bytes)
        yield look.say("undecodable"), look.say("bytes", count=f"{report.undecodable:,}", share=share)


def _where_and_why(bad: BadRow, language: Language) -> dict[str, str]:
    told = {"position": bad.position, "reason": bad.reason}
    worded = messages_data.in_chinese(told) if language == "zh" else told
    return {"path": Path(bad.path).name, **{name: str(value) for name, value in worded.items()}}


def _fit(report: DataReport, look: Look) -> Iterator[tuple[str, str]]:
    share, limit = _share(report.longer, report.read.documents), f"{report.max_seq_len:,}"
    longer = {"count": f"{report.longer:,}", "limit": limit, "share": share, "longest": f"{report.longest:,}"}
    yield look.say("longer"), look.say("longer_than", **longer)
    if report.cut_tokens:
        share = _share(report.cut_tokens, report.read.tokens)
        cut = {"tokens": f"{report.cut_tokens:,}", "count": f"{report.truncated:,}", "share": share}
        yield look.say("cut"), look.say("cut_from", **cut)
    if report.dropped:
        yield look.say("dropped"), look.say("no_room", count=f"{report.dropped:,}")
    if report.left_out_turns:
        yield look.say("turns"), look.say("left_out_turns", count=f"{report.left_out_turns:,}")
    if report.left_out_tokens:
        yield look.say("left"), look.say("left_tokens", count=f"{report.left_out_tokens:,}")
    if report.packs is not None and report.fill is not None:
        fills = {"fill": _share(report.fill, 1), "alone": _share(report.fill_alone or 0, 1)}
        yield look.say("packed"), look.say("packs", count=f"{report.packs:,}", **fills)


def _steps(report: DataReport, look: Look) -> Iterator[tuple[str, str]]:
    mark = "" if report.complete else f"{look.about} "
    short = report.steps_per_epoch > report.full_steps_per_epoch
    samples = f"{report.samples_per_step:,}"
    detail = look.say("full", count=samples)
    if short:
        detail = look.say("short", count=f"{mark}{report.full_steps_per_epoch:,}", samples=samples)
    told = {"steps": f"{mark}{report.steps_per_epoch:,}", "detail": detail}
    told["total"] = f"{'' if report.limited else mark}{report.total_steps:,}"
    tokens = look.say("per_step", tokens=f"{report.tokens_per_step:,}")
    yield look.say("steps"), f"{look.say('per_epoch', **told)}   {tokens}"
    if report.batch_is_default:
        yield "", look.say("default_batch")


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[Text]:
    width = max(cell_len(name) for name, _ in rows)
    for name, value in rows:
        yield Text.assemble((name, _STYLES["heading"]), " " * (width - cell_len(name) + 2), value)


# --- the histogram ---------------------------------------------------------------------------------


def _histogram(report: DataReport, look: Look) -> Iterator[Text]:
    limit = look.say("limit", limit=f"{report.max_seq_len:,}")
    yield Text.assemble((look.say("lengths"), _STYLES["heading"]), f"  ({limit})")
    most = max(one.documents for one in report.lengths)
    width = max(len(f"{one.start:,}") for one in report.lengths)
    marked = False
    for one in report.lengths:
        if not marked and one.stop > report.max_seq_len:
            marked = True
            if one is not report.lengths[0]:
                yield Text(f"  {'-' * (width + 2 + _BAR)} {report.max_seq_len:,}", style=_STYLES["over"])
        style = _STYLES["over"] if one.start >= report.max_seq_len else ""
        yield Text.assemble(f"  {one.start:>{width},}  ", (_bar(one, most, look), style), f" {one.documents:,}")


def _bar(one: LengthBin, most: int, look: Look) -> str:
    eighths = round(8 * _BAR * one.documents / max(1, most))
    if one.documents and not eighths:
        eighths = 1  # what is there is seen
    if not look.blocks:
        return "#" * -(-eighths // 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


# --- samples ---------------------------------------------------------------------------------------


def _samples_heading(look: Look) -> Text:
    heading = Text(look.say("samples"), style=_STYLES["heading"])
    if look.colour:
        legend = Text.assemble("  (", (look.say("colours"), _STYLES["learned"]), ")")
    else:
        legend = Text(f"  ({look.say('marks', start=_LEARNED[0], end=_LEARNED[1])})")
    return Text.assemble(heading, legend)


def _sample(number: int, sample: SampleView, look: Look) -> Iterator[Text]:
    text = Text(f"{number}. ")
    learned, document, shown = False, sample.tokens[0].document if sample.tokens else 0, 0
    for token in sample.tokens:
        if len(text) > _SAMPLE:
            break
        if token.document != document:
            document = token.document
            text.append(f"\n--- {look.say('document', number=document + 1)}\n", style=_STYLES["given"])
        if not look.colour and token.learned != learned:
            text.append(_LEARNED[not token.learned])
        learned = token.learned
        text.append(_shown(token, look), style=_style(token) if look.colour else "")
        shown += 1
    if not look.colour and learned:
        text.append(_LEARNED[1])
    if sample.length > shown:
        text.append(f" {look.say('more', count=f'{sample.length - shown:,}')}", style=_STYLES["given"])
    yield text


def _style(token: Token) -> str:
    kind = _STYLES["learned" if token.learned else "given"]
    return f"{kind} bold" if token.special else kind


def _shown(token: Token, look: Look) -> str:
    return visible(token.text.replace("\n", "↵\n") if look.blocks else token.text)


# --- small things ----------------------------------------------------------------------------------


def _share(part: float, whole: float) -> str:
    percent = 100 * part / max(1, whole)
    return f"{percent:.2g} %" if 0.01 <= percent < 1 else "< 0.01 %" if 0 < percent < 0.01 else f"{percent:.1f} %"
