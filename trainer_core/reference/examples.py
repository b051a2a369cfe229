"""One example of every event and command, for docs/protocol.md and its tests."""

from __future__ import annotations

from typing import Any, Final

from trainer_core import protocol

_T: Final = 1_767_225_600.125  # 2026-01-01 00:00:00 UTC
_GIB: Final = 2**30

_EVENTS: Final[list[protocol.AnyEvent]] = [
    protocol.Hello(
        pid=4711,
        run_dir="D:\\Traindeck\\runs\\gpu-20260101-000000",
        traindeck="0.1.0",
        python="3.12.8",
        torch="2.13.0+cu130",
        devices=["NVIDIA GeForce RTX 4090"],
        precision="bf16",
        config={"preset": "gpu", "data": ["D:\\我的数据\\novels.txt"], "batch_size": 16},
        fast_paths=[
            protocol.FastPath(name="compile", used=False, reason="path.no_triton"),
            protocol.FastPath(name="tf32", used=True, reason="path.on", error=3.1e-4, gain=1.42),
        ],
    ),
    protocol.Ready(
        task="pretrain",
        sources=[protocol.Source(path="D:\\我的数据\\novels.txt", format="text", encoding="gb18030", bytes=48_250_112)],
        train_documents=912,
        train_tokens=11_482_330,
        validation_documents=48,
        validation_tokens=604_333,
        vocab_size=8192,
        parameters=4_507_392,
        steps_per_epoch=700,
        total_steps=2100,
        samples_per_epoch=22_414,
        loader_ahead=4,
        loader_pinned=True,
        loader_reason="gpu",
        fast_paths=[
            protocol.FastPath(name="compile", used=True, choice="inductor", reason="path.on", error=8.4e-5, gain=1.83),
            protocol.FastPath(
                name="attention", used=True, choice="flash", reason="path.fastest", error=2.2e-4, gain=1.31
            ),
            protocol.FastPath(
                name="flash3", used=False, reason="path.not_installed", params={"package": "flash-attn-3"}
            ),
        ],
        compile_s=34.2,
    ),
    protocol.DataReport(
        complete=False,
        task="sft",
        sources=[
            protocol.Source(
                path="D:\\我的数据\\questions.parquet",
                format="parquet",
                columns=["question", "answer"],
                found=["id", "question", "answer"],
                used={"prompt": "question", "response": "answer"},
                bytes=1_093_222_400,
            )
        ],
        bytes=1_093_222_400,
        read_bytes=16_777_216,
        vocab_size=8192,
        read=protocol.Counts(rows=153_450, documents=153_450, characters=39_129_750, tokens=9_782_437),
        total=protocol.Counts(rows=10_000_000, documents=10_000_000, characters=2_550_000_000, tokens=637_500_293),
        train_documents=9_500_000,
        train_tokens=605_625_278,
        validation_documents=500_000,
        validation_tokens=31_875_015,
        max_seq_len=256,
        lengths=[
            protocol.LengthBin(start=32, stop=64, documents=84_410),
            protocol.LengthBin(start=64, stop=128, documents=61_022),
            protocol.LengthBin(start=128, stop=256, documents=7_604),
            protocol.LengthBin(start=256, stop=512, documents=414),
        ],
        longest=498,
        longer=414,
        truncated=402,
        cut_tokens=23_118,
        dropped=12,
        duplicates=37,
        bad=1,
        first_bad=protocol.BadRow(
            path="D:\\我的数据\\questions.parquet", position="row 4117", reason="“answer” is empty"
        ),
        samples_per_epoch=9_499_257,
        tokens_per_step=6_120,
        steps_per_epoch=98_951,
        full_steps_per_epoch=98_950,
        total_steps=98_951,
        samples_per_step=96,
        samples=[
            protocol.SampleView(
                tokens=[
                    protocol.Token("<|im_start|>", 1, False, True, 0),
                    protocol.Token("user", 882, False, False, 0),
                    protocol.Token("\n", 198, False, False, 0),
                    protocol.Token("2+2?", 4710, False, False, 0),
                    protocol.Token("<|im_end|>", 2, False, True, 0),
                    protocol.Token("\n", 198, False, False, 0),
                    protocol.Token("<|im_start|>", 1, False, True, 0),
                    protocol.Token("assistant", 921, False, False, 0),
                    protocol.Token("\n", 198, False, False, 0),
                    protocol.Token("4", 19, True, False, 0),
                    protocol.Token("<|im_end|>", 2, True, True, 0),
                ],
                length=11,
            )
        ],
    ),
    protocol.Phase(phase="training", step=0),
    protocol.Progress(phase="preparing", done=12_582_912, total=48_250_112, unit="bytes", eta_s=5.7),
    protocol.Step(
        step=120,
        epoch=0.171,
        tokens=1_966_080,
        samples=3840,
        loss=4.213,
        learning_rate=3e-4,
        grad_norm=0.84,
        tokens_per_s=412_300.0,
        samples_per_s=805.3,
        mfu=0.31,
        time_ms=protocol.StepTime(
            data=0.4, transfer=0.2, forward=11.9, backward=23.6, optimizer=2.9, checkpoint=0.0, other=0.7
        ),
    ),
    protocol.Performance(
        step=150,
        data_ratio=0.01,
        compute_ratio=0.97,
        mfu=0.31,
        flops_per_token=3.1e7,
        peak_flops=165.2e12,
        peak_name="NVIDIA GeForce RTX 4090, bf16",
        memory_allocated=6 * _GIB,
        memory_reserved=8 * _GIB,
        memory_peak=7 * _GIB,
        energy_j=772.4,
        energy_per_million_tokens_j=942.0,
        gradient_noise=212.0,
    ),
    protocol.FlopsProfile(
        step=200,
        tokens=4096,
        total=2.53e11,
        formula=2.54e11,
        rows=[
            protocol.FlopsRow(module="model.layers.0.self_attn", forward=6.4e9, backward=1.28e10, share=0.076),
            protocol.FlopsRow(module="model.layers.0.mlp", forward=1.29e10, backward=2.58e10, share=0.153),
            protocol.FlopsRow(module="lm_head", forward=1.72e10, backward=3.44e10, share=0.204),
        ],
    ),
    protocol.BadStep(
        step=231, kind="spike", grad_norm=48.7, usual=0.91, action="skipped", samples=[1204, 88, 19_533, 7021]
    ),
    protocol.MemoryMove(
        step=3012,
        action="halved",
        during="backward",
        batch_size=8,
        gradient_accumulation_steps=8,
        requested=2 * _GIB,
        free=1 * _GIB,
        total=24 * _GIB,
    ),
    protocol.CheckReport(
        verdict="tight",
        device="NVIDIA GeForce RTX 4090",
        chosen=protocol.Trial(
            batch_size=16,
            gradient_accumulation_steps=4,
            activation_checkpointing="off",
            chunked_loss="auto",
            fits=True,
            peak=23 * _GIB,
            ram_peak=3 * _GIB,
            tokens_per_s=88_400.0,
        ),
        offers=[
            protocol.Trial(
                batch_size=8,
                gradient_accumulation_steps=8,
                activation_checkpointing="off",
                chunked_loss="auto",
                fits=True,
                peak=13 * _GIB,
                ram_peak=3 * _GIB,
                tokens_per_s=86_900.0,
            )
        ],
        memory_total=24 * _GIB,
        memory_free=23 * _GIB,
        ram_total=32 * _GIB,
        ram_free=20 * _GIB,
        total_steps=20_000,
        seconds=14_800.0,
        compile_s=41.0,
        checkpoint_bytes=2 * _GIB,
        checkpoints=3,
        disk_needed=8 * _GIB,
        disk_free=300 * _GIB,
        parameters=124_000_000,
        tokens_per_step=65_536,
        took_s=58.0,
    ),
    protocol.Hardware(
        gpus=[
            protocol.Gpu(
                index=0,
                name="NVIDIA GeForce RTX 4090",
                utilization=0.97,
                vram_used=9 * _GIB,
                vram_total=24 * _GIB,
                torch_allocated=6 * _GIB,
                torch_reserved=8 * _GIB,
                power_w=388.2,
                power_limit_w=450.0,
                temperature_c=67.0,
                clock_mhz=2640,
                throttle=["power"],
            )
        ],
        host=protocol.Host(ram_used=14 * _GIB, ram_total=32 * _GIB, rss=3 * _GIB, cpu=0.22, disk_free=410 * _GIB),
    ),
    protocol.Eval(step=250, loss=3.871, perplexity=47.99, tokens=409_600, seconds=1.42, best=True),
    protocol.Sample(step=250, prompt="从前有一座山，", text="山上住着一位老人。"),
    protocol.Loaded(
        checkpoint="D:\\Traindeck\\runs\\gpu-20260101-000000\\checkpoints\\step-00000500",
        step=500,
        chat=False,
        parameters=4_507_392,
        device="NVIDIA GeForce RTX 4090",
        max_seq_len=512,
        seconds=1.8,
    ),
    protocol.Text(id=9, piece="山上住着", tokens=3),
    protocol.Generated(id=9, tokens=200, prompt_tokens=5, seconds=1.6, tokens_per_s=125.0, reason="length"),
    protocol.Checkpoint(
        step=500,
        path="step-00000500",
        bytes=54_120_448,
        seconds=0.31,
        kind="best",
        kept=["step-00000500"],
        removed=["step-00000250"],
    ),
    protocol.Advice(
        code="advice.data_bound",
        params={"percent": 34, "ms": 41.7, "workers": 2},
        step=420,
        fix={"num_workers": 4},
    ),
    protocol.Warn(code="data.undecodable", params={"path": "a.txt", "count": 3, "encoding": "utf-8"}),
    protocol.Error(
        code="memory.out",
        params={"device": "cuda:0", "step": 3000},
        detail="CUDA out of memory. Tried to allocate 2.00 GiB.",
        exit_code=5,
    ),
    protocol.Ack(command="stop", id=3),
    protocol.Done(
        reason="finished",
        steps=2100,
        total_steps=2100,
        best_loss=3.402,
        final_loss=3.402,
        tokens=34_406_400,
        seconds=96.1,
        tokens_per_s=358_026.0,
        peak_vram=9 * _GIB,
        model="D:\\Traindeck\\runs\\gpu-20260101-000000\\checkpoints\\step-00002100",
    ),
]
for _seq, _event in enumerate(_EVENTS, start=1):
    _event.t, _event.seq = _T + _seq, _seq

_COMMANDS: Final[list[protocol.AnyCommand]] = [
    protocol.Stop(id=3),
    protocol.Pause(id=4),
    protocol.Resume(id=5),
    protocol.Save(id=6),
    protocol.SampleNow(id=7, prompt="Once upon a time"),
    protocol.Set(id=8, name="log_steps", value=5),
    protocol.Generate(id=9, prompt="从前有一座山，", temperature=0.7, top_k=40, seed=7),
    protocol.Interrupt(id=10),
]

EVENTS: Final[dict[type[Any], Any]] = {type(event): event for event in _EVENTS}
COMMANDS: Final[dict[type[Any], Any]] = {type(command): command for command in _COMMANDS}
