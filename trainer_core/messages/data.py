"""Why a row or a file of data cannot be used, and where, in Chinese. English is what the readers say themselves.

A reason is technical and often not ours (a JSON parser's), so it travels as text. It is recognised here by its
form; one that is not known stays as it is. No torch, no Qt.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

Value = str | int | float | bool | None

_REASONS: Final[dict[str, str]] = {
    # columns
    "“{}” is missing": "缺少“{}”",
    "“{}” is empty": "“{}”为空",
    "“{}” is not text": "“{}”不是文本",
    "“{}” is not a list of messages": "“{}”不是消息列表",
    "“{}” has no answer of an assistant": "“{}”中没有助手的回答",
    "a message's role is {}": "消息的角色为 {}",
    "an assistant's message has no text": "助手的消息没有文本",
    "a message's content is not text": "消息的内容不是文本",
    "a tool call names no function": "工具调用没有函数名",
    "“{}” is not a list of tools": "“{}”不是工具列表",
    "a tool or a tool call has an unsupported value": "工具或工具调用含有不支持的值",
    "it has no messages": "没有消息",
    "the model was trained on plain text": "该模型是用纯文本训练的",
    "it is longer than 4 million characters": "超过 400 万个字符",  # caches of before say it so
    "it is longer than 4 million characters; divide it into several conversations": "超过 400 万个字符，请分成几段对话",
    "the model's chat template writes none of its answers": "模型的对话模板没有写出它的任何回答",
    # JSON, as Python's json module says it
    "not a JSON object": "不是 JSON 对象",
    "Expecting value": "JSON：此处应有一个值",
    "Expecting property name enclosed in double quotes": "JSON：属性名应使用双引号",
    "Expecting '{}' delimiter": "JSON：缺少分隔符“{}”",
    "Illegal trailing comma before end of {}": "JSON：末尾有多余的逗号",
    "Extra data": "JSON：末尾有多余的内容",
    "Invalid control character": "JSON：含有未转义的控制字符",
    "Invalid control character at": "JSON：含有未转义的控制字符",
    "Invalid \\escape": "JSON：转义无效",
    "Invalid \\uXXXX escape": "JSON：\\u 转义无效",
    "Unterminated string": "JSON：字符串没有结束",
    "Unterminated string starting at": "JSON：字符串没有结束",
    "RecursionError": "嵌套过深",
    "it should be an array of objects: [{…}, {…}]": "应为对象数组：[{…}, {…}]",
    "it ends too early": "过早结束",
    # tables and archives
    "a quotation mark is never closed": "引号没有闭合",
    "longer than {} million characters": "超过 {} 百万个字符",
    "longer than {} MiB": "超过 {} MiB",
    "the file became shorter while it was read": "读取期间文件变短",
    "its name leads out of the archive": "文件名指向归档之外",
    "it is a zip archive; unpack it": "这是 zip 压缩包，请先解压",
    "its end is missing, or it is a file of another kind": "文件不完整（缺少结尾），或是其他类型的文件",
    "Corrupt snappy compressed data": "压缩数据已损坏",
    "a header is damaged": "文件头已损坏",
    "it is not a tar archive": "不是 tar 归档",
    "it is not a regular file": "不是普通文件",
    # checkpoints
    "{} has {#} bytes instead of {#}": "{} 有 {} 个字节，应为 {} 个",
    "the content of {} has changed": "{} 的内容已改变",
    "manifest.json lists no files": "manifest.json 未列出任何文件",
    "manifest.json is not readable": "manifest.json 无法读取",
    "{}.{} is missing": "缺少 {}.{}",
    "{}.{} cannot be read: {}": "无法读取 {}.{}：{}",
    "the compressed data breaks off": "压缩数据不完整",
    # files of a folder that are left out
    "it looks like a binary file, not text": "看起来是二进制文件，不是文本",
    "it has no column “{}”": "没有列“{}”",
    "it is plain text beside conversations": "是与对话放在一起的纯文本",
}
_POSITIONS: Final[dict[str, str]] = {
    "line {#} after byte {#}": "字节 {1} 之后的第 {0} 行",
    "line {#}": "第 {} 行",
    "row {#}": "第 {} 行",
    "element {#}": "第 {} 个元素",
    "piece {#}": "第 {} 段",
    "batch {#}": "第 {} 批",
    "sample {}": "样本 {}",
    "after {}": "{} 之后",
    "the beginning": "开头",
    "its beginning": "开头",
    "its end": "末尾",
    "byte {#} of {#}": "第 {} 字节（共 {} 字节）",
}

_ALLOWED: Final[dict[str, str]] = {  # what `Knob.allowed` says
    "a whole number {} and {}": "整数，{} 且 {}",
    "a whole number {}": "整数，{}",
    "a whole number": "整数",
    "a number {} and {}": "数值，{} 且 {}",
    "a number {}": "数值，{}",
    "a number": "数值",
    "a list of texts": "文本列表",
    "a text": "文本",
}
_TABLES: Final = {"reason": _REASONS, "position": _POSITIONS, "allowed": _ALLOWED}


def reason_in_chinese(reason: str) -> str:
    """A reason in Chinese, where it is a known one. A member of an archive in front of it (`.json: …`) stays."""
    member, colon, rest = reason.partition(": ")
    if colon and re.fullmatch(r"\.\w+", member):
        return f"{member}：{_translated(rest, 'reason')}"
    member, is_, rest = reason.partition(" is ")
    if is_ and re.fullmatch(r"\.\w+", member):
        return f"{member} {_translated(rest, 'reason')}"
    return _translated(reason, "reason")


def position_in_chinese(position: str) -> str:
    """`line 17` as 第 17 行, `its end, after line 17` as 末尾，第 17 行之后."""
    place, after, row = position.partition(", after ")
    worded = _translated(place, "position")
    return f"{worded}，{_translated(row, 'position')}之后" if after else worded


def allowed_in_chinese(allowed: str) -> str:
    """`a number >= 0` as 数值，>= 0; the names of choices stay."""
    return _translated(allowed, "allowed")


def in_chinese(params: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters of a message with its reason, its position and what is allowed in Chinese."""
    found = dict(params)
    for name, worded in (
        ("reason", reason_in_chinese),
        ("position", position_in_chinese),
        ("allowed", allowed_in_chinese),
    ):
        value = found.get(name)
        if isinstance(value, str):
            found[name] = worded(value)
    return found


def _translated(text: str, table: str) -> str:
    for pattern, chinese in _patterns(table):
        found = pattern.fullmatch(text)
        if found is not None:
            return chinese.format(*found.groups()) if found.groups() else chinese
    return text


@functools.cache
def _patterns(table: str) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(_pattern(english), re.DOTALL), chinese) for english, chinese in _TABLES[table].items()]


def _pattern(english: str) -> str:
    return re.escape(english).replace(r"\{\#\}", "([0-9,]+)").replace(r"\{\}", "(.*?)")
