"""The wire: every event arrives as it was sent, and garbage is refused as garbage."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from trainer_core import protocol
from trainer_core.protocol import ProtocolError, decode_command, decode_event, encode

GPU = protocol.Gpu(index=0, name="RTX 4090", utilization=0.5, vram_used=2**33, vram_total=2**34, throttle=["power"])
HOST = protocol.Host(ram_used=2**33, ram_total=2**35, rss=2**30, cpu=0.25, disk_free=10**12)
TIMES = protocol.StepTime(data=1.0, transfer=0.5, forward=10.0, backward=20.0, optimizer=3.0, other=0.5)
WORDS: dict[str, protocol.Param] = {"path": "数据 file.txt", "count": 3, "share": 0.5, "exact": False, "nothing": None}
TRIAL = protocol.MeasuredSettings(
    batch_size=4, gradient_accumulation_steps=2, activation_checkpointing="off", chunked_loss="auto", fits=False
)
EVENTS: list[protocol.AnyEvent] = [
    protocol.Hello(pid=7, run_dir="C:\\跑\\a b", traindeck="0.1", python="3.12", torch="2.13", config={"data": ["文"]}),
    protocol.Ready(
        task="sft",
        sources=[protocol.Source(path="数据.jsonl", format="jsonl", columns=["prompt", "response"], bytes=10)],
        train_documents=100,
        train_tokens=1000,
        validation_documents=5,
        validation_tokens=50,
        vocab_size=300,
        parameters=10**6,
        steps_per_epoch=10,
        total_steps=30,
    ),
    protocol.DataReport(
        complete=False,
        task="sft",
        bytes=10,
        read_bytes=5,
        vocab_size=300,
        read=protocol.DataCounts(rows=1, documents=1, characters=2, tokens=4),
        total=protocol.DataCounts(rows=2, documents=2, characters=4, tokens=8),
        train_documents=2,
        train_tokens=8,
        validation_documents=0,
        validation_tokens=0,
        max_seq_len=8,
        lengths=[protocol.LengthBin(start=4, stop=8, documents=1)],
        fill=0.5,
        first_bad=protocol.BadRow(path="数据.jsonl", position="line 1", reason="x"),
        samples_per_epoch=2,
        tokens_per_step=8,
        steps_per_epoch=1,
        full_steps_per_epoch=1,
        total_steps=1,
        samples_per_step=2,
        samples=[protocol.SampleView(tokens=[protocol.Token("文", 7, True, False, 0)], length=1)],
    ),
    protocol.Phase(phase="training", step=3),
    protocol.Progress(phase="preparing", done=10.0, total=None, unit="bytes"),
    protocol.Step(
        step=1,
        epoch=0.5,
        tokens=100,
        samples=2,
        loss=2.5,
        learning_rate=3e-4,
        tokens_per_s=1e5,
        samples_per_s=10.0,
        time_ms=TIMES,
    ),
    protocol.Performance(step=1, data_ratio=0.1, compute_ratio=0.8, flops_per_token=6e8, peak_name="RTX 3090"),
    protocol.Compiled(step=120, compile_s=9.5, fast_paths=[protocol.FastPath(name="compile", used=True)]),
    protocol.FlopsProfile(
        step=1,
        tokens=64,
        total=3e9,
        formula=2.9e9,
        rows=[protocol.FlopsRow(module="model.layers.0", forward=1e9, backward=2e9, share=1.0)],
    ),
    protocol.BadStep(step=7, kind="not_finite", action="skipped", epoch=1, samples=[3, 2**40]),
    protocol.OomRecovery(
        step=8, action="halved", during="forward", batch_size=2, gradient_accumulation_steps=4, free=9
    ),
    protocol.CheckReport(
        verdict="does_not_fit",
        device="CPU",
        chosen=TRIAL,
        alternatives=[TRIAL],
        ram_total=2**34,
        ram_free=2**33,
        total_steps=10,
        checkpoint_bytes=5,
        checkpoints=2,
        disk_needed=15,
        disk_free=20,
        parameters=7,
        tokens_per_step=64,
    ),
    protocol.Hardware(gpus=[GPU, protocol.Gpu(index=1, name="x")], host=HOST),
    protocol.Eval(step=5, loss=1.5, perplexity=4.5, tokens=10, seconds=0.5, best=True, bleu4=12.5, exact_match=0.25),
    protocol.Sample(step=5, prompt="def ", text="你好 🙂\n\u2028\x00", expected="x"),
    protocol.ModelLoaded(
        checkpoint="C:\\跑\\a b", step=5, chat=True, parameters=10**6, device="CPU (2 threads)", max_seq_len=64
    ),
    protocol.GeneratedPiece(id=3, piece="你好\n", tokens=2),
    protocol.GenerationDone(id=3, tokens=2, prompt_tokens=7, seconds=0.5, tokens_per_s=4.0, reason="interrupted"),
    protocol.Checkpoint(step=5, path="step-00000005", bytes=10, seconds=0.1, kind="best", kept=["a"], removed=["b"]),
    protocol.Advice(code="a.b", params=WORDS),
    protocol.Warn(code="a.b", params=WORDS, detail="long\ntext"),
    protocol.Error(code="memory.out", exit_code=5),
    protocol.Ack(command="stop", id=3, accepted=False, reason="no"),
    protocol.Done(reason="stopped", steps=5, total_steps=10, model="m"),
]
STEP = next(event for event in EVENTS if isinstance(event, protocol.Step))
COMMANDS: list[protocol.AnyCommand] = [
    protocol.Stop(id=1),
    protocol.Pause(),
    protocol.Resume(),
    protocol.Save(),
    protocol.SampleCommand(prompt="写", max_tokens=8),
    protocol.Set(name="log_steps", value=5.0),
    protocol.Generate(id=9, turns=[protocol.Turn(role="user", content="写")], top_p=0.9),
    protocol.Interrupt(id=10),
]


def test_every_class_of_an_event_or_command_can_be_decoded() -> None:
    """A class that is missing in the union is sent but refused on arrival."""
    concrete = [
        kind for kind in vars(protocol).values() if isinstance(kind, type) and kind.__module__ == protocol.__name__
    ]
    tagged = [kind for kind in concrete if issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag]
    bases = {protocol.Event, protocol.Command, protocol.CodedEvent}
    assert set(tagged) - bases == {*protocol.EVENT_TYPES, *protocol.COMMAND_TYPES}


def name_of(message: object) -> str:
    return type(message).__name__


def test_the_examples_here_cover_every_event_and_command() -> None:
    assert [type(event) for event in EVENTS] == list(protocol.EVENT_TYPES)
    assert [type(command) for command in COMMANDS] == list(protocol.COMMAND_TYPES)


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_every_event_arrives_as_it_was_sent(event: protocol.AnyEvent) -> None:
    event.t, event.seq = 1_700_000_000.25, 12
    line = encode(event)
    assert decode_event(line) == event
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
def test_every_command_arrives_as_it_was_sent(command: protocol.AnyCommand) -> None:
    line = encode(command)
    assert decode_command(line) == command
    assert line.isascii()


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_fields_of_a_newer_version_are_ignored(event: protocol.AnyEvent) -> None:
    sent = json.loads(encode(event))
    assert decode_event(json.dumps({**sent, "from_the_future": {"a": [1]}}).encode()) == event


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_becomes_null(number: float) -> None:
    step = msgspec.structs.replace(STEP, loss=number, grad_norm=number)
    line = encode(step)
    assert json.loads(line)["loss"] is None
    arrived = decode_event(line)
    assert isinstance(arrived, protocol.Step)
    assert (arrived.loss, arrived.grad_norm) == (None, None)
    nested = decode_event(encode(protocol.Warn(code="x", params={"value": number})))
    assert isinstance(nested, protocol.Warn)
    assert nested.params == {"value": None}


def test_a_file_name_that_is_no_text_does_not_spoil_the_line() -> None:
    arrived = decode_event(encode(protocol.Warn(code="x", params={"path": "caf\udce9"}, detail="\ud800")))
    assert isinstance(arrived, protocol.Warn)
    assert (arrived.params["path"], arrived.detail) == ("caf?", "?")


GARBAGE = [
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


@pytest.mark.parametrize("line", GARBAGE, ids=lambda line: line[:24].decode("latin-1"))
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_event(line)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"command":"fly"}', b'{"command":"set","name":"seed","value":1}', b'{"type":"stop"}', b"[" * 99999],
)
def test_a_line_that_is_no_command_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(line)


def test_half_a_line_is_refused() -> None:
    line = encode(STEP)
    for cut in range(len(line) - 2):
        with pytest.raises(ProtocolError):
            decode_event(line[:cut])


def test_every_event_carries_type_time_and_number() -> None:
    for event in EVENTS:
        sent: dict[str, Any] = json.loads(encode(event))
        assert list(sent)[:3] == ["type", "t", "seq"]
