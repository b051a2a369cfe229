"""Groups of slow tests.

`./train_gpu.sh test` leaves them out, `./train_gpu.sh test --all` runs them, and `.ci/run` runs a short case of each
group (`SMOKE`). Entries are files, tests (`FILE::TEST`) and their cases, relative to tests/.
"""

from __future__ import annotations

from typing import Final

SLOW: Final[dict[str, tuple[str, ...]]] = {
    "ranks": ("core/test_ranks.py", "faults/test_ranks_failures.py", "faults/test_ranks_nccl.py"),
    "compile": (
        "core/test_engine_compiled.py",
        "core/test_exact_resume_compiled.py",
        "core/test_loss.py::test_a_compiled_chunked_loss_equals_the_reference",
    ),
    "fast_paths": ("core/test_fast_paths.py", "core/test_doctor_fast_paths.py", "core/test_bench_command.py"),
    "check": ("core/test_check_command.py", "core/test_automatic_batch.py"),
    "resume": (
        "core/test_resume_position.py",
        "core/test_exact_resume_packed.py",
        "core/test_exact_resume_bad_steps.py",
        "core/test_pausing.py",
        "core/test_resume_rules.py",
        "core/test_bad_steps.py::test_a_run_with_rollbacks_resumes_exactly",
        "core/test_exact_resume.py::test_a_resume_after_a_stop_is_exact",
        "core/test_exact_resume.py::test_a_resume_after_ctrl_c_is_exact",
        "core/test_validation_sample.py::test_a_resume_keeps_the_validation_sample",
    ),
    "fine_tuning": (
        "core/test_fine_tuning.py",
        "core/test_lora_training.py",
        "core/test_preset_base.py",
        "gui/test_gui_preset_base.py",
        "faults/test_bad_base_models.py",
        "core/test_transformers_training.py",
        "core/test_transformers_models.py::test_a_model_of_each_architecture_equals_that_of_transformers",
        "core/test_qlora.py",
        "core/test_model_families.py::test_64_greedy_tokens_are_equal",
        "core/test_model_families.py::test_the_export_has_equal_tensors_and_logits_in_transformers",
        "core/test_model_families.py::test_a_traced_model_of_dynamic_width_is_equal",
        "core/test_model_template.py::test_transformers_renders_the_same_prompt_from_a_checkpoint",
        "core/test_activation_checkpointing.py::test_a_traced_model_has_the_same_gradients",
        "core/test_adapters.py::test_a_checkpoint_of_a_model_with_600_million_weights_is_small",
        "unit/test_base_model_hub.py::test_a_process_that_is_stopped_ends_at_once_although_the_server_is_silent",
        "unit/test_base_model_hub.py::test_a_process_downloads_without_a_word_on_the_console",
        "unit/test_base_model_hub.py::test_a_server_that_stays_broken_is_reported_and_the_next_start_continues",
        "unit/test_bench_gpu.py::test_a_small_model_is_fine_tuned_and_measured_on_a_cpu",
    ),
    "kills": (
        "faults/test_kills.py",
        "faults/test_restarts.py",
        "faults/test_stop_anywhere.py",
        "faults/test_emergency_checkpoint.py",
        "unit/test_token_cache.py::test_the_cache_is_identical_after_kills_at_any_moment",
        "unit/test_token_cache.py::test_worker_processes_exit_with_a_killed_parent",
        "unit/test_token_cache.py::test_preparation_completes_after_a_worker_is_killed",
        "unit/test_token_cache.py::test_preparation_restarts_if_committed_data_is_missing",
    ),
    "disk": ("faults/test_full_disk.py", "faults/test_checkpoint_transaction.py", "faults/test_damaged_checkpoint.py"),
    "oom": ("faults/test_out_of_memory.py", "unit/test_readers_memory.py"),
    "fuzzing": (
        "faults/test_fuzzing_caches.py",
        "faults/test_fuzzing_checkpoint.py",
        "faults/test_fuzzing_wire.py",
        "faults/test_bad_input.py",
        "faults/test_lost_parent.py",
        "faults/test_untrusted_input.py",
    ),
    "data": (
        "unit/test_readers_all.py::test_resumed_reading_equals_uninterrupted_reading",
        "unit/test_readers_all.py::test_compressed_files_yield_the_same_rows",
        "unit/test_data_report.py::test_a_sample_estimates_the_totals",
        "unit/test_chat_sandbox.py::test_an_endless_template_is_refused",
        "unit/test_published_templates.py::test_200_conversations_have_the_ids_of_transformers",
    ),
    "export": (
        "core/test_export_verification.py",
        "core/test_gguf_export.py::test_each_family_and_feature_is_equal_in_llama_cpp",
        "core/test_gguf_export.py::test_k_quants_have_the_types_of_llama_quantize[q5_k_m]",
        "core/test_gguf_export.py::test_k_quants_have_the_types_of_llama_quantize[q6_k]",
        "core/test_gguf_export.py::test_half_precision_equals_rounded_weights[f16]",
        "core/test_gguf_export.py::test_other_tokenizers_of_llama_models_are_equal_in_llama_cpp",
        "core/test_gguf_export.py::test_a_text_of_mistral_begins_with_a_space_unless_the_model_is_a_chat_model",
    ),
    "setup": ("process/test_setup_runs.py", "process/test_setup_updates.py"),
    "answers": (
        "core/test_answers.py::test_an_answer_does_not_depend_on_its_batch",
        "core/test_generation_server.py::test_the_text_equals_that_of_the_terminal_for_the_same_seed",
        "core/test_answers.py::test_long_answers_match_next_to_a_prompt_that_fills_the_context",
        "core/test_answers.py::test_a_batch_that_runs_out_of_memory_is_split",
        "core/test_generation_server.py::test_an_interrupt_ends_active_and_queued_requests",
    ),
    "window": (
        "gui/test_gui_data_real.py",
        "gui/test_gui_chat_real.py",
        "gui/test_gui_queue_real.py",
        "gui/test_gui_real.py",
        "gui/test_gui_long_runs.py",
        "gui/test_gui_new_user.py",
        "gui/test_gui_layout_items.py",
        "gui/test_gui_pictures.py::test_every_page_matches_its_golden_picture[en-dark]",
        "gui/test_gui_pictures.py::test_every_page_matches_its_golden_picture[zh-light]",
        "gui/test_gui_pictures.py::test_a_moved_hidden_or_recolored_widget_is_detected",
        "gui/test_gui_small_screen.py",
        "gui/test_gui_languages.py::test_no_text_is_clipped_after_switching_language_and_theme",
        "gui/test_gui_languages.py::test_no_text_is_clipped",
        "gui/test_gui_languages.py::test_no_chinese_text_remains_after_switching_to_english",
        "gui/test_gui_data.py::test_texts_of_cards_are_not_clipped",
        "gui/test_gui_data.py::test_the_content_fits_the_width_of_the_page",
        "gui/test_gui_keyboard.py::test_tab_follows_the_reading_order",
        "gui/test_gui_keyboard.py::test_tab_reaches_every_control",
        "gui/test_gui_languages.py::test_the_language_is_switched_while_the_window_is_open",
        "gui/test_gui_model.py::test_a_preset_selects_the_kind_of_its_base_model",
        "gui/test_gui_model.py::test_without_runs_the_choice_of_a_run_is_disabled_with_the_reason",
        "gui/test_gui_model.py::test_a_typed_folder_is_summarized_and_hides_the_settings_of_a_new_model",
        "gui/test_gui_model.py::test_runs_that_are_base_models_are_offered_by_name",
        "gui/test_gui_model_list.py::test_the_list_shows_the_memory_and_time_that_a_check_measured",
        "gui/test_gui_invalid_values.py::test_every_field_marks_every_kind_of_invalid_value_with_the_allowed_values",
    ),
}
SMOKE: Final = (
    "core/test_gguf_export.py::test_each_family_and_feature_is_equal_in_llama_cpp[gemma 3]",
    "core/test_ranks.py::test_two_ranks_equal_a_single_process",
    "core/test_engine_compiled.py::test_a_run_is_eager_if_the_compiler_fails",
    "core/test_fast_paths.py::test_a_damaged_cache_is_ignored",
    "core/test_automatic_batch.py::test_automatic_settings_are_stored_and_a_resume_is_exact",
    "core/test_exact_resume.py::test_a_resume_after_a_stop_is_exact",
    "core/test_resume_position.py::test_a_resume_past_the_requested_length_is_rejected_without_changes",
    "core/test_exact_resume_packed.py::test_a_packed_run_resumes_exactly",
    "core/test_lora_training.py::test_a_resumed_run_is_exact_and_leaves_the_base_unchanged",
    "core/test_preset_base.py::test_pause_and_stop_reach_the_training_of_the_base_which_the_next_start_resumes",
    "core/test_export_verification.py::test_a_stop_ends_the_verification_and_leaves_no_process",
    "faults/test_kills.py",
    "faults/test_checkpoint_transaction.py",
    "faults/test_out_of_memory.py",
    "faults/test_fuzzing_wire.py",
    "unit/test_readers_all.py::test_compressed_files_yield_the_same_rows",
    "process/test_setup_runs.py::test_a_killed_setup_is_completed_by_the_next_one",
    "core/test_answers.py::test_an_answer_does_not_depend_on_its_batch",
    "gui/test_gui_new_user.py",
)


def matches(test: str, entries: tuple[str, ...]) -> bool:
    """Whether `test` (`core/test_x.py::test_y[parameters]`, relative to tests/), its file or all cases are listed."""
    file, _, name = test.partition("::")
    return not {file, f"{file}::{name.partition('[')[0]}", test}.isdisjoint(entries)
