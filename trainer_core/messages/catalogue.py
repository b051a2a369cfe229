"""The table of messages: codes → words in English and Chinese. One table, however long. No torch, no Qt."""

from __future__ import annotations

from typing import Final

from trainer_core.messages.advice import ADVICE
from trainer_core.messages.checking import CHECKING
from trainer_core.messages.doctor import DOCTOR
from trainer_core.messages.engine import ENGINE
from trainer_core.messages.failures import FAILURES
from trainer_core.messages.message import ExitCode, Message, error, note
from trainer_core.messages.pause import PAUSE

_USAGE, _DATA, _DEVICE = ExitCode.USAGE, ExitCode.DATA, ExitCode.DEVICE

CATALOGUE: Final[dict[str, Message]] = {
    # --- configuration and command line -------------------------------------------------------
    "config.unknown_key": error(
        _USAGE,
        ("{where} has an unknown setting “{name}”.", "Did you mean “{nearest}”? Correct or remove it."),
        ("{where}中有未知的设置“{name}”。", "是否想写“{nearest}”？请改正或删除。"),
    ),
    "config.no_such_key": error(
        _USAGE,
        ("{where} has an unknown setting “{name}”.", "Remove it; docs/knobs.md lists all settings."),
        ("{where}中有未知的设置“{name}”。", "请删除；全部设置见 docs/knobs.md。"),
    ),
    "config.bad_value": error(
        _USAGE,
        ("{where}: “{name}” was given {given}.", "Allowed: {allowed}."),
        ("{where}：“{name}”的值为 {given}。", "允许的值：{allowed}。"),
    ),
    "config.heads": error(
        _USAGE,
        (
            "{n_heads} attention heads do not fit a width of {hidden_dim}.",
            "Choose hidden_dim as an even multiple of n_heads.",
        ),
        ("{n_heads} 个注意力头与宽度 {hidden_dim} 不匹配。", "请让 hidden_dim 是 n_heads 的偶数倍。"),
    ),
    "config.kv_heads": error(
        _USAGE,
        ("{n_kv_heads} key/value heads do not divide {n_heads} attention heads.", "Change n_kv_heads or n_heads."),
        ("{n_heads} 个注意力头不能被 {n_kv_heads} 个键值头整除。", "请修改 n_kv_heads 或 n_heads。"),
    ),
    "config.bias_and_norm": error(
        _USAGE,
        ("qkv_bias and qk_norm are both on, which no model family that other programs load has.", "Turn one off."),
        ("qkv_bias 与 qk_norm 同时开启，没有其他程序能加载的模型系列支持这样。", "请关闭其中之一。"),
    ),
    "config.qwen_pre_tokenizer": error(
        _USAGE,
        (
            "With qkv_bias or qk_norm other programs load the model as a Qwen, with Qwen's way of splitting text, not “{pre_tokenizer}”.",
            "Set pre_tokenizer to qwen2.",
        ),
        (
            "开启 qkv_bias 或 qk_norm 后，其他程序会按 Qwen 加载模型并用 Qwen 的方式切分文本，而不是“{pre_tokenizer}”。",
            "请将 pre_tokenizer 设为 qwen2。",
        ),
    ),
    "ranks.too_many": error(
        _USAGE,
        (
            "{ranks} processes cannot share {sequences} sequences: some would have nothing to do.",
            "Lower ranks, or raise batch_size or gradient_accumulation_steps.",
        ),
        (
            "{ranks} 个进程无法分配 {sequences} 条序列：会有进程无事可做。",
            "请减小 ranks，或增大 batch_size 或 gradient_accumulation_steps。",
        ),
    ),
    "ranks.one_machine": error(
        _USAGE,
        ("The processes of this run are on several machines.", "Traindeck trains on the GPUs of one machine."),
        ("本次运行的进程分布在多台机器上。", "Traindeck 只在一台机器的显卡上训练。"),
    ),
    "ranks.no_connection": error(
        ExitCode.FAILED,
        (
            "The processes of this run found each other, but nothing gets through between them.",
            "A security program may hold back connections within this machine (127.0.0.1). Set ranks to 1 to train "
            "without them.",
        ),
        (
            "本次运行的各进程已找到彼此，但数据无法在它们之间传送。",
            "可能有安全软件拦截本机内部的连接（127.0.0.1）。将 ranks 设为 1 即可单进程训练。",
        ),
    ),
    "ranks.no_nccl": note(
        (
            "NCCL does not work between these GPUs ({reason}): gradients go through system memory instead, which is "
            "slower.",
            "The run is right all the same. To make it quicker, start it with NCCL_P2P_DISABLE=1 in the environment; "
            "in a container give it more shared memory too (docker run --shm-size=1g).",
        ),
        (
            "NCCL 无法在这些显卡之间工作（{reason}）：梯度改经系统内存传送，速度较慢。",
            "运行结果不受影响。如需加快，请设置环境变量 NCCL_P2P_DISABLE=1 后再启动；在容器中还请增大共享内存（docker run "
            "--shm-size=1g）。",
        ),
    ),
    "ranks.nccl_stuck": error(
        _DEVICE,
        (
            "NCCL does not work between these GPUs, and the attempt cannot be broken off.",
            "Start again with NCCL_P2P_DISABLE=1 in the environment, or with ranks set to 1.",
        ),
        (
            "NCCL 无法在这些显卡之间工作，且这次尝试无法中止。",
            "请设置环境变量 NCCL_P2P_DISABLE=1 后重新启动，或将 ranks 设为 1。",
        ),
    ),
    "ranks.ended": note(
        ("Process {number} of the {of} of this run has ended.", "What it said last is in {log} in the run's folder."),
        ("本次运行的 {of} 个进程中第 {number} 个已结束。", "它最后的输出在运行文件夹的 {log} 中。"),
    ),
    "config.schedule": error(
        _USAGE,
        (
            "“{given}” in pause_between is no span of time.",
            "Write spans such as 09:00-18:00, or mon-fri 09:00-18:00, with commas between several.",
        ),
        (
            "pause_between 中的“{given}”不是时间段。",
            "请写成 09:00-18:00 或 mon-fri 09:00-18:00 这样的时间段，多个时间段用逗号分隔。",
        ),
    ),
    "config.unreadable": error(
        _USAGE,
        ("The configuration file {path} could not be read.", "Check that it exists and is valid YAML."),
        ("无法读取配置文件 {path}。", "请确认它存在且是有效的 YAML。"),
    ),
    "config.unknown_preset": error(
        _USAGE,
        ("There is no preset “{name}”.", "Did you mean “{nearest}”? `presets` lists all of them."),
        ("没有名为“{name}”的预设。", "是否想写“{nearest}”？用 `presets` 查看全部预设。"),
    ),
    "config.no_such_preset": error(
        _USAGE,
        ("There is no preset “{name}”.", "Choose one of: {known}."),
        ("没有名为“{name}”的预设。", "可选：{known}。"),
    ),
    "config.preset_loop": error(
        _USAGE,
        ("The preset “{name}” extends itself through {chain}.", "Remove one `extends` line."),
        ("预设“{name}”通过 {chain} 循环继承自身。", "请删除其中一行 `extends`。"),
    ),
    "usage": error(
        _USAGE,
        ("{problem}", "Run it with --help to see what is allowed."),
        ("{problem}", "用 --help 查看允许的用法。"),
    ),
    # --- data -------------------------------------------------------------------------------------
    "data.none_given": error(
        _DATA,
        ("No data was chosen.", "Give --data PATH (a file or a folder), or use a preset with built-in data."),
        ("没有选择数据。", "请用 --data PATH 指定文件或文件夹，或使用带内置数据的预设。"),
    ),
    "data.not_found": error(
        _DATA,
        ("The data path {path} does not exist.", "Check the spelling, or choose the file again."),
        ("数据路径 {path} 不存在。", "请检查拼写，或重新选择文件。"),
    ),
    "data.unreadable": error(
        _DATA,
        ("The data file {path} could not be read: {reason}.", "Check its permissions and that no program holds it."),
        ("无法读取数据文件 {path}：{reason}。", "请检查权限，并确认没有其他程序占用它。"),
    ),
    "data.empty": error(
        _DATA,
        ("{path} holds no text at all.", "Choose a file with content."),
        ("{path} 中没有任何文本。", "请选择有内容的文件。"),
    ),
    "data.binary": error(
        _DATA,
        (
            "{path} looks like a binary file, not text.",
            "Traindeck reads {known}; convert it first.",
        ),
        (
            "{path} 看起来是二进制文件，不是文本。",
            "可读取：{known}；请先转换。",
        ),
    ),
    "data.unknown_format": error(
        _DATA,
        (
            "{path} is of a kind that Traindeck does not read.",
            "Use one of: {known}, or name its format with --data-format.",
        ),
        ("{path} 的格式无法读取。", "请使用：{known}，或用 --data-format 指定格式。"),
    ),
    "data.bad_format": error(
        _DATA,
        (
            "{path} could not be read as {format} (at {position}): {reason}.",
            "Get the file anew or repair it; if only its name is wrong, say what it is with --data-format.",
        ),
        (
            "无法按 {format} 读取 {path}（位置：{position}）：{reason}。",
            "请重新获取或修复该文件；如果只是文件名后缀不对，请用 --data-format 指明格式。",
        ),
    ),
    "data.missing_columns": error(
        _DATA,
        (
            "{path} has no column “{wanted}”; its columns are: {found}.",
            "Name the right one with --text-column, or --prompt-column and --response-column.",
        ),
        (
            "{path} 中没有列“{wanted}”；现有的列：{found}。",
            "请用 --text-column，或 --prompt-column 和 --response-column 指定。",
        ),
    ),
    "data.mixed": error(
        _DATA,
        (
            "{text} is plain text and {chats} holds conversations: a run learns one or the other, not both together.",
            "Choose data of one kind; or write the text as conversations, or the conversations as rows with a column "
            "“text”.",
        ),
        (
            "{text} 是纯文本，而 {chats} 是对话：一次训练只能使用其中一种，不能混用。",
            "请只选择一种数据；或把文本改写为对话，或把对话改写为带“text”列的行。",
        ),
    ),
    "data.no_files": error(
        _DATA,
        ("The folder {path} holds no file that Traindeck reads.", "It reads: {known}."),
        ("文件夹 {path} 中没有可读取的文件。", "可读取：{known}。"),
    ),
    "data.no_train_split": error(
        _DATA,
        (
            "The data set {path} has no split called “train”; its splits are: {found}.",
            "Choose the folder of the one to train on, such as --data {first}.",
        ),
        (
            "数据集 {path} 中没有名为“train”的划分；现有的划分：{found}。",
            "请选择要训练的划分的文件夹，例如 --data {first}。",
        ),
    ),
    "data.too_short": error(
        _DATA,
        (
            "The data makes {tokens} tokens, less than one training sequence of {needed} tokens.",
            "Add more text, or lower --max-seq-len.",
        ),
        ("数据只有 {tokens} 个词元，不足一个训练序列（{needed} 个词元）。", "请增加文本，或减小 --max-seq-len。"),
    ),
    "data.too_few_samples": error(
        _DATA,
        ("Only {samples} prompt/response pairs could be used; at least {needed} are needed.", "Add more pairs."),
        ("只有 {samples} 对问答可用，至少需要 {needed} 对。", "请增加数据。"),
    ),
    "data.changed": error(
        _DATA,
        (
            "The training data, validation data or tokenizer of this run has changed since it was started, so it cannot resume.",
            "Put the data back, or start a new run.",
        ),
        ("此次运行的训练数据、验证数据或分词器自开始后已改变，无法继续。", "请恢复数据，或开始新的运行。"),
    ),
    "data.bad_row": error(
        _DATA,
        ("{path}, {position}, cannot be used: {reason}.", "Mend it, or leave such rows out with --on-bad-row skip."),
        ("{path} 的{position}无法使用：{reason}。", "请修正，或用 --on-bad-row skip 跳过此类行。"),
    ),
    "data.too_many_bad_rows": error(
        _DATA,
        (
            "{count} rows up to here could not be used. The first bad row of {path} is {position}: {reason}.",
            "Mend the data, or raise --bad-row-limit (0: no limit).",
        ),
        (
            "至此已有 {count} 行无法使用。{path} 的第一个坏行在{position}：{reason}。",
            "请修正数据，或增大 --bad-row-limit（0 表示不限）。",
        ),
    ),
    "data.needs_cache": error(
        _DATA,
        (
            "{path} is no parquet file; only those can be trained on without a token cache.",
            "Leave out --no-token-cache.",
        ),
        ("{path} 不是 parquet 文件；不用词元缓存时只能使用 parquet。", "请去掉 --no-token-cache。"),
    ),
    "data.changed_while_read": error(
        _DATA,
        ("{path} changed or went away while it was being read.", "Start again when nothing writes to it."),
        ("读取期间 {path} 被修改或删除。", "请在没有程序写入它时重新开始。"),
    ),
    "data.bad_tokenizer": error(
        _DATA,
        ("The tokenizer {path} could not be used: {reason}.", "Give a Hugging Face tokenizer.json, or leave it out."),
        ("无法使用分词器 {path}：{reason}。", "请提供 Hugging Face 的 tokenizer.json，或留空。"),
    ),
    "data.bad_template": error(
        _DATA,
        ("The chat template in {path} cannot be used: {reason}.", "Mend it, or remove it: then ChatML is used."),
        ("{path} 中的对话模板无法使用：{reason}。", "请修正或删除它；删除后将使用 ChatML。"),
    ),
    "data.chat_refused": error(
        _DATA,
        ("A conversation does not fit the chat template: {reason}.", "Change it or leave it out."),
        ("有一段对话不符合对话模板：{reason}。", "请修改或舍弃它。"),
    ),
    # --- disk and run directory -----------------------------------------------------------------
    "disk.full": error(
        ExitCode.DISK_FULL,
        (
            "The disk of {path} is full: {needed_mib} are needed and less than {free_mib} are free.",
            "Free some space, then resume; everything saved before is intact.",
        ),
        (
            "{path} 所在磁盘已满：需要 {needed_mib}，剩余不到 {free_mib}。",
            "请腾出空间后继续；此前保存的内容完好。",
        ),
    ),
    "disk.unsaved": error(
        ExitCode.DISK_FULL,
        (
            "The disk of {path} is full ({needed_mib} are needed, {free_mib} are free), so what was trained after "
            "step {saved}, up to step {step}, could not be saved.",
            "Free some space, then resume: the run goes on from its newest checkpoint, that of step {saved}.",
        ),
        (
            "{path} 所在磁盘已满（需要 {needed_mib}，剩余 {free_mib}），第 {saved} 步之后（至第 {step} 步）的训练未能保存。",
            "请腾出空间后继续：将从最新的检查点（第 {saved} 步）开始。",
        ),
    ),
    "disk.waiting": note(
        (
            "The disk of {path} is too full for a checkpoint: {needed_mib} are needed and {free_mib} are free.",
            "Free some space: training waits, and goes on by itself.",
        ),
        (
            "{path} 所在磁盘空间不足以保存检查点：需要 {needed_mib}，剩余 {free_mib}。",
            "请腾出空间：训练正在等待，之后会自动继续。",
        ),
    ),
    "disk.not_writable": error(
        ExitCode.FAILED,
        (
            "{path} cannot be written: {reason}.",
            "Choose another folder, or change its permissions.",
        ),
        ("无法写入 {path}：{reason}。", "请选择其他文件夹，或修改权限。"),
    ),
    "run.in_use": error(
        _USAGE,
        ("The run {path} is already being trained by process {pid}.", "Wait for it, stop it, or use another folder."),
        ("运行 {path} 正由进程 {pid} 训练。", "请等待或停止它，或换一个文件夹。"),
    ),
    "run.exists": error(
        _USAGE,
        ("{path} already holds a run.", "Add --resume to go on with it, or choose another --run-dir."),
        ("{path} 中已有一次运行。", "加上 --resume 继续它，或选择其他 --run-dir。"),
    ),
    "run.not_found": error(
        _USAGE,
        ("There is no run at {path}.", "`runs` lists the runs on this machine."),
        ("{path} 处没有运行。", "用 `runs` 查看本机上的运行。"),
    ),
    "resume.past_max_steps": error(
        _USAGE,
        (
            "This run has already trained {done} steps; max_steps asks for {wanted}.",
            "Set --max-steps to more than {done} to train on. Nothing was changed.",
        ),
        (
            "此运行已训练 {done} 步，而 max_steps 为 {wanted}。",
            "如需继续训练，请将 --max-steps 设为大于 {done} 的值。未作任何更改。",
        ),
    ),
    "resume.past_max_epochs": error(
        _USAGE,
        (
            "This run has already trained {done} epochs; max_epochs asks for {wanted}.",
            "Raise --max-epochs to train on. Nothing was changed.",
        ),
        ("此运行已训练 {done} 轮，而 max_epochs 为 {wanted}。", "如需继续训练，请增大 --max-epochs。未作任何更改。"),
    ),
    "resume.order_changed": error(
        _USAGE,
        (
            "Cannot resume with another {setting}: the run was trained with {before}, now it is {after}.",
            "It decides which samples are left. Keep it, or start a new run.",
        ),
        (
            "无法以不同的 {setting} 继续：该运行训练时为 {before}，现在为 {after}。",
            "它决定还剩哪些样本。请保持不变，或开始新的运行。",
        ),
    ),
    "checkpoint.of_no_run": error(
        _USAGE,
        (
            "The checkpoint {path} is in no run's folder, so nobody knows how it was trained: {config} is not there.",
            "Put it back into the folder `checkpoints` of its run, and resume it there.",
        ),
        (
            "检查点 {path} 不在任何运行的文件夹中，因此不知道它是如何训练的：没有 {config}。",
            "请把它放回其运行的 `checkpoints` 文件夹，再从那里继续。",
        ),
    ),
    "run.no_checkpoint": error(
        _USAGE,
        ("The run {path} has no usable checkpoint yet.", "Start it anew, or choose another run."),
        ("运行 {path} 还没有可用的检查点。", "请重新开始，或选择其他运行。"),
    ),
    "export.not_empty": error(
        _USAGE,
        ("{path} is no empty folder: nothing was exported.", "Name a folder that is empty or not there yet."),
        ("{path} 不是空文件夹，未导出任何内容。", "请指定一个空的或尚不存在的文件夹。"),
    ),
    "export.drive": error(
        _USAGE,
        ("{path} is a whole drive: nothing was exported.", "Name a folder on it, such as {example}."),
        ("{path} 是整个驱动器，未导出任何内容。", "请指定其中的一个文件夹，例如 {example}。"),
    ),
    "export.bad_name": error(
        _USAGE,
        ("Windows takes no folder called “{name}”: nothing was exported.", "Name another, such as “{other}”."),
        ("Windows 不允许文件夹名为“{name}”，未导出任何内容。", "请换一个名称，例如“{other}”。"),
    ),
    "run.restarting": note(
        (
            "The run goes on from step {step} in {seconds} s by itself (attempt {attempt} of {of}).",
            "Ctrl+C ends it instead; what was saved stays.",
        ),
        (
            "运行将在 {seconds} 秒后自动从第 {step} 步继续（第 {attempt} 次，共 {of} 次）。",
            "按 Ctrl+C 可改为结束；已保存的内容会保留。",
        ),
    ),
    "run.vanished": note(
        (
            "The trainer ended without a word (exit code {exit_code}): a person or a program has ended it.",
            "Go on with --resume; what was saved stays.",
        ),
        (
            "训练程序没有任何说明就结束了（退出代码 {exit_code}）：它被人或其他程序结束。",
            "可用 --resume 继续；已保存的内容会保留。",
        ),
    ),
    "run.gave_up": note(
        (
            "The run was started again {attempts} times without getting beyond step {step}, and failed each time.",
            "What was saved stays: look at the cause, run `doctor`, then --resume.",
        ),
        (
            "运行已自动重新开始 {attempts} 次，都没能超过第 {step} 步。",
            "已保存的内容会保留：请查看原因，运行 `doctor`，再用 --resume 继续。",
        ),
    ),
    "checkpoint.damaged": error(
        ExitCode.FAILED,
        ("The checkpoint {path} is damaged: {reason}.", "Choose an earlier checkpoint of the run."),
        ("检查点 {path} 已损坏：{reason}。", "请选择该运行更早的检查点。"),
    ),
    "checkpoint.mismatch": error(
        _USAGE,
        (
            "The checkpoint {path} does not fit this configuration: {what}.",
            "Resume with the settings that it was made with.",
        ),
        ("检查点 {path} 与当前配置不符：{what}。", "请使用生成它时的设置继续。"),
    ),
    "model.unsupported": error(
        _USAGE,
        (
            "The model {path} asks for {name} = {value} in its config.json, which Traindeck does not implement.",
            "Choose a Llama, Qwen2 or Qwen3 model without it.",
        ),
        (
            "模型 {path} 的 config.json 要求 {name} = {value}，Traindeck 尚未实现。",
            "请选择不使用该设置的 Llama、Qwen2 或 Qwen3 模型。",
        ),
    ),
    # --- device and training ------------------------------------------------------------------------
    "device.not_available": error(
        _DEVICE,
        ("The device “{device}” is not available: {reason}.", "Use --device auto or --device cpu, or run `doctor`."),
        ("设备“{device}”不可用：{reason}。", "请使用 --device auto 或 --device cpu，或运行 `doctor`。"),
    ),
    "generate.memory": error(
        ExitCode.OUT_OF_MEMORY,
        (
            "The memory of {device} does not suffice to write with this model.",
            "Use --device cpu, or end what else needs that memory.",
        ),
        ("{device} 的内存不足以用该模型生成。", "请使用 --device cpu，或结束其他占用内存的程序。"),
    ),
    "device.failed": error(
        _DEVICE,
        ("The device “{device}” failed at step {step}.", "Resume from the last checkpoint; run `doctor` if it recurs."),
        ("设备“{device}”在第 {step} 步出错。", "请从最近的检查点继续；若再次出现，请运行 `doctor`。"),
    ),
    "memory.out": error(
        ExitCode.OUT_OF_MEMORY,
        (
            "Out of memory on {device} at step {step}.",
            "Lower --batch-size (and raise --gradient-accumulation-steps), --max-seq-len or --hidden-dim, then resume.",
        ),
        (
            "{device} 在第 {step} 步内存不足。",
            "请减小 --batch-size（并增大 --gradient-accumulation-steps）、--max-seq-len 或 --hidden-dim，然后继续。",
        ),
    ),
    "memory.exhausted": error(
        ExitCode.OUT_OF_MEMORY,
        (
            "Out of memory on {device} at step {step}, even with one sequence at a time, activations computed again and "
            "the loss in parts.",
            "Close other programs that use its memory and resume; or train anew with a lower --max-seq-len, "
            "--hidden-dim, --n-layers or --vocab-size.",
        ),
        (
            "{device} 在第 {step} 步内存不足；即使每次只算一条序列、重新计算激活并分块计算损失，仍然不够。",
            "请关闭其他占用内存的程序后继续；或减小 --max-seq-len、--hidden-dim、--n-layers 或 --vocab-size 重新训练。",
        ),
    ),
    "memory.left_out": note(
        (
            "Memory ended at step {step} in what {what} asks for: it was left out, and training goes on.",
            "Set --{what} to 0 if this comes again.",
        ),
        (
            "第 {step} 步执行 {what} 时内存不足：已略过，训练继续。",
            "如再次出现，请将 --{what} 设为 0。",
        ),
    ),
    "bench.too_large": error(
        _USAGE,
        (
            "Preset {preset} is too large to be measured here: one micro-batch would take about {seconds} s on {device}.",
            "Choose a smaller preset, such as quickstart, or lower --batch-size.",
        ),
        (
            "预设 {preset} 太大，无法在此测试：一个微批在 {device} 上约需 {seconds} 秒。",
            "请选择更小的预设（如 quickstart），或减小 --batch-size。",
        ),
    ),
    "train.not_finite": error(
        ExitCode.FAILED,
        (
            "The loss became {value} at step {step}, so training was stopped before it could be saved over good weights.",
            "Lower --learning-rate, then resume from the last checkpoint.",
        ),
        (
            "损失在第 {step} 步变为 {value}，已停止训练，以免覆盖完好的权重。",
            "请减小 --learning-rate，再从最近的检查点继续。",
        ),
    ),
    "train.bad_steps": error(
        ExitCode.FAILED,
        (
            "{count} steps in a row had a gradient that was not finite or far too large, the last of them step {step}.",
            "Lower --learning-rate or raise --warmup-steps, then resume from the last checkpoint.",
        ),
        (
            "连续 {count} 步的梯度不是有限数或过大，最后一步是第 {step} 步。",
            "请减小 --learning-rate 或增大 --warmup-steps，再从最近的检查点继续。",
        ),
    ),
    "internal": error(
        ExitCode.FAILED,
        ("Something unexpected went wrong ({kind}).", "The details are in {log}; please report them."),
        ("发生了意外错误（{kind}）。", "详细信息在 {log} 中，请反馈给我们。"),
    ),
    "parent.lost": error(
        ExitCode.STOPPED,
        ("The program that started the trainer is gone.", "The run was saved; resume it whenever you like."),
        ("启动训练的程序已退出。", "运行已保存，可随时继续。"),
    ),
    # --- warnings and advice ------------------------------------------------------------------------
    "checkpoint.skipped": note(
        ("The checkpoint {path} is damaged ({reason}) and was passed over.", "The one before it is taken."),
        ("检查点 {path} 已损坏（{reason}），已跳过。", "改用更早的一个。"),
    ),
    "checkpoint.not_saved": note(
        ("The checkpoint at step {step} could not be saved: {reason}.", "Earlier checkpoints are intact."),
        ("第 {step} 步的检查点未能保存：{reason}。", "更早的检查点完好。"),
    ),
    "resume.not_exact": note(
        (
            "{what} changed from {before} to {after}: the results will differ from those of an uninterrupted run.",
            "The loss may jump a little.",
        ),
        ("{what} 由 {before} 变为 {after}：结果将与未中断的运行不同。", "损失可能略有跳动。"),
    ),
    "resume.eval_sample_kept": note(
        (
            "eval_batches changed from {before} to {after}, but this run still evaluates the same {sequences} sequences.",
            "Its eval losses stay comparable. Start a new run to evaluate more or fewer.",
        ),
        (
            "eval_batches 由 {before} 变为 {after}，但此次运行仍评估相同的 {sequences} 个序列。",
            "评估损失因此保持可比。如需评估更多或更少，请开始新的运行。",
        ),
    ),
    "events.dropped": note(
        (
            "{count} intermediate measurements were not shown because the reader was too slow.",
            "None is missing on disk.",
        ),
        ("由于读取方过慢，有 {count} 条中间数据未显示。", "磁盘上没有缺失。"),
    ),
    "events.not_written": note(
        ("The record of this run could not be written to {path}: {reason}.", "Training goes on; plots may have gaps."),
        ("无法把本次运行的记录写入 {path}：{reason}。", "训练继续；图表可能有缺口。"),
    ),
    "command.unknown": note(
        ("The command “{command}” was not understood and was ignored.", ""),
        ("无法理解命令“{command}”，已忽略。", ""),
    ),
    "data.undecodable": note(
        ("{count} bytes of {path} could not be decoded as {encoding} and were replaced.", "Check its encoding."),
        ("{path} 中有 {count} 个字节无法按 {encoding} 解码，已被替换。", "请检查其编码。"),
    ),
    "data.rows_skipped": note(
        ("Rows of {path} were skipped, {count} in all: {reason}.", "The first was at {position}."),
        ("{path} 中有 {count} 行被跳过：{reason}。", "第一处位于{position}。"),
    ),
    "data.turns_left_out": note(
        (
            "{count} messages with tool calls or their results were left out: the chat template cannot write them.",
            "Use the tokenizer of a model trained for tool calls.",
        ),
        (
            "{count} 条含工具调用或其结果的消息已舍弃：对话模板无法写出它们。",
            "可改用支持工具调用的模型的分词器。",
        ),
    ),
    "data.truncated": note(
        (
            "{count} of {total} samples were longer than {limit} tokens and were cut.",
            "Raise --max-seq-len to keep them.",
        ),
        ("{total} 个样本中有 {count} 个超过 {limit} 个词元，已被截断。", "增大 --max-seq-len 可保留。"),
    ),
    "data.samples_dropped": note(
        (
            "{count} of {total} samples were left out: their prompt alone fills {limit} tokens.",
            "Raise --max-seq-len to use them.",
        ),
        ("{total} 个样本中有 {count} 个被舍弃：仅提示就占满了 {limit} 个词元。", "增大 --max-seq-len 可使用它们。"),
    ),
    "data.duplicates": note(
        (
            "Of {total} rows (or pieces of text), {count} repeat another.",
            "A model learns by heart what it reads often.",
        ),
        ("{total} 行（或文本片段）中有 {count} 个与其他重复。", "模型会死记硬背反复读到的内容。"),
    ),
    "data.files_skipped": note(
        ("Files in {path} cannot be used and were left out, {count} in all.", "The first: {first}, {reason}."),
        ("{path} 中有 {count} 个文件无法使用，未读取。", "第一个：{first}，{reason}。"),
    ),
    "data.other_task": note(
        (
            "Files of {path} hold plain text and were left out, {count} in all, for others hold conversations.",
            "The first: {first}. With --task pretrain the texts are read instead.",
        ),
        (
            "{path} 中有 {count} 个纯文本文件未使用，因为其他文件是对话。",
            "第一个：{first}。用 --task pretrain 可改为读取文本。",
        ),
    ),
    "cache.waiting": note(
        ("Another program prepares the same data; waiting for it.", ""),
        ("另一个程序正在准备相同的数据，等待其完成。", ""),
    ),
    "cache.going_on": note(
        ("Preparation goes on where it was stopped.", ""),
        ("从上次停止处继续准备数据。", ""),
    ),
    "cache.kept": note(
        ("What was prepared so far is kept; the next start goes on from there.", ""),
        ("已准备的部分已保留，下次启动将从该处继续。", ""),
    ),
    "data.tokenizer_extended": note(
        ("The tokenizer {path} lacked {tokens}; they were added at its end.", ""),
        ("分词器 {path} 缺少 {tokens}，已添加到末尾。", ""),
    ),
    "cache.file_changed": note(
        ("{path} has changed since the data was last prepared, so it is prepared anew.", ""),
        ("自上次准备数据以来 {path} 已改变，将重新准备。", ""),
    ),
    "cache.file_gone": note(
        (
            "Files that the data had when it was last prepared are gone, {count} in all; it is prepared anew.",
            "The first: {path}",
        ),
        ("上次准备数据时的 {count} 个文件已不存在，将重新准备。", "第一个：{path}"),
    ),
    "cache.file_new": note(
        (
            "Files have come to the data since it was last prepared, {count} in all; it is prepared anew.",
            "The first: {path}",
        ),
        ("自上次准备数据以来新增了 {count} 个文件，将重新准备。", "第一个：{path}"),
    ),
    "cache.option_changed": note(
        ("The data is prepared anew, for these settings have changed since it was last prepared: {names}.", ""),
        ("自上次准备数据以来以下设置已改变：{names}，将重新准备数据。", ""),
    ),
    "cache.damaged": note(
        ("The prepared data was damaged or incomplete, so it is prepared anew.", ""),
        ("已准备好的数据损坏或不完整，将重新准备。", ""),
    ),
    "cache.gone": note(
        ("The prepared data was deleted, so it is prepared anew.", ""),
        ("已准备好的数据已被删除，将重新准备。", ""),
    ),
    "data.few_tokens": note(
        (
            "The data has {tokens} tokens for a model of {parameters} parameters; it will learn it by heart.",
            "Add more data or choose a smaller model.",
        ),
        ("数据只有 {tokens} 个词元，而模型有 {parameters} 个参数，容易死记硬背。", "请增加数据或选择更小的模型。"),
    ),
    "data.no_validation": note(
        ("The data is too small to hold any of it back for validation.", "There will be no eval loss."),
        ("数据太少，无法留出验证集。", "将没有评估损失。"),
    ),
    "data.validation_unusable": note(
        ("The validation data makes no sequence that can be evaluated.", "There will be no eval loss."),
        ("验证数据中没有可以评估的序列。", "将没有评估损失。"),
    ),
    "data.overlap": note(
        (
            "{count} of {total} validation rows (or pieces of text), {percent} %, also occur in the training data.",
            "The eval loss is lower than on new data. Remove them from the training or the validation data.",
        ),
        (
            "{total} 行验证数据（或文本片段）中有 {count} 个（{percent} %）也出现在训练数据中。",
            "评估损失会低于在新数据上的损失。请将它们从训练数据或验证数据中删除。",
        ),
    ),
    "preset.for_gpu": note(
        (
            "The preset {preset} is made for an NVIDIA GPU, but this run computes on {device}: it may take days.",
            "Use --preset cpu or quickstart here; `doctor` says why a GPU is not used.",
        ),
        (
            "预设 {preset} 是为 NVIDIA 显卡准备的，而本次使用 {device} 计算，可能需要数天。",
            "请改用 --preset cpu 或 quickstart；`doctor` 可说明为何没有使用显卡。",
        ),
    ),
    "precision.fallback": note(
        ("{wanted} is not supported on {device}; {used} is used instead.", ""),
        ("{device} 不支持 {wanted}，改用 {used}。", ""),
    ),
    "wandb.unavailable": note(
        ("Weights & Biases could not be started: {reason}.", "Training goes on without it."),
        ("无法启动 Weights & Biases：{reason}。", "训练将在没有它的情况下继续。"),
    ),
    "hardware.no_nvml": note(
        ("GPU figures are not available: {reason}.", "Run `doctor` to see what is missing."),
        ("无法读取 GPU 数据：{reason}。", "运行 `doctor` 查看缺少什么。"),
    ),
}

CATALOGUE.update({code: note(en, zh) for code, (en, zh) in (ADVICE | CHECKING | DOCTOR | ENGINE | PAUSE).items()})
CATALOGUE.update({code: error(ExitCode[ending], en, zh) for code, (ending, (en, zh)) in FAILURES.items()})
