"""The wire protocol: encoding, decoding, and rejection of invalid lines."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from trainer_core import protocol
from trainer_core.docgen.examples import COMMANDS, EVENTS
from trainer_core.protocol import ProtocolError, decode_command, decode_event, encode

STEP: protocol.Step = EVENTS[protocol.Step]
PARAMS: dict[str, protocol.Param] = {
    "path": "数据 🙂\n\u2028\x00",
    "count": 2**40,
    "share": 0.5,
    "exact": False,
    "no": None,
}


def test_every_event_and_command_class_is_in_its_union() -> None:
    """Events of a class outside the union are encoded but cannot be decoded."""
    classes = [
        kind for kind in vars(protocol).values() if isinstance(kind, type) and kind.__module__ == protocol.__name__
    ]
    tagged = [kind for kind in classes if issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag]
    bases = {protocol.Event, protocol.Command, protocol.MessageEvent}
    assert set(tagged) - bases == {*protocol.EVENT_TYPES, *protocol.COMMAND_TYPES}


def test_every_event_is_decoded_as_it_was_encoded() -> None:
    for event in [*EVENTS.values(), protocol.Warn(code="a.b", params=PARAMS, detail="long\ntext")]:
        line = encode(event)
        assert decode_event(line) == event
        assert line.isascii()
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")


def test_every_command_is_decoded_as_it_was_encoded() -> None:
    turns = [protocol.Turn(role="user", content="写")]
    for command in [*COMMANDS.values(), protocol.Generate(id=9, turns=turns, top_p=0.9)]:
        line = encode(command)
        assert decode_command(line) == command
        assert line.isascii()


def test_fields_of_a_newer_version_are_ignored() -> None:
    for event in EVENTS.values():
        fields = json.loads(encode(event))
        assert decode_event(json.dumps({**fields, "from_the_future": {"a": [1]}}).encode()) == event


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_become_null(number: float) -> None:
    step = msgspec.structs.replace(STEP, loss=number, grad_norm=number)
    line = encode(step)
    assert json.loads(line)["loss"] is None
    decoded = decode_event(line)
    assert isinstance(decoded, protocol.Step)
    assert (decoded.loss, decoded.grad_norm) == (None, None)
    nested = decode_event(encode(protocol.Warn(code="x", params={"value": number})))
    assert isinstance(nested, protocol.Warn)
    assert nested.params == {"value": None}


def test_lone_surrogates_are_replaced() -> None:
    decoded = decode_event(encode(protocol.Warn(code="x", params={"path": "caf\udce9"}, detail="\ud800")))
    assert isinstance(decoded, protocol.Warn)
    assert (decoded.params["path"], decoded.detail) == ("caf?", "?")


INVALID_EVENTS = [
    b"",
    b"\n",
    b"hello",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b'{"type":"nobody"}',
    b'{"type":1}',
    b'{"type":"phase"}',
    b'{"type":"phase","phase":"dancing"}',
    b'{"type":"phase","phase":"done","step":"x"}',
    b"\xff\xfe\x00",
    b'{"type":"phase","phase":"\xff"}',
    b"[" * 100_000,
    b'{"type":"hello","pid":1,"run_dir":"","traindeck":"","python":"","torch":"","config":{"a":' + b"[" * 100_000,
]


@pytest.mark.parametrize("line", INVALID_EVENTS, ids=lambda line: line[:24].decode("latin-1"))
def test_an_invalid_event_is_rejected(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_event(line)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"command":"fly"}', b'{"command":"set","name":"seed","value":1}', b'{"type":"stop"}', b"[" * 99999],
)
def test_an_invalid_command_is_rejected(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(line)


def test_a_truncated_line_is_rejected() -> None:
    line = encode(STEP)
    for cut in range(len(line) - 2):
        with pytest.raises(ProtocolError):
            decode_event(line[:cut])


def test_every_event_starts_with_its_type_time_and_sequence_number() -> None:
    for event in EVENTS.values():
        fields: dict[str, Any] = json.loads(encode(event))
        assert list(fields)[:3] == ["type", "t", "seq"]
