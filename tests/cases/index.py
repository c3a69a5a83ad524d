"""Which tests are about which field case.

The cases are in `cases/field-cases.md` of the optional corpus (harness/shared.py). A
name that stands for artifacts means the folders of `cases/tosa` that begin with the case.
"""

ARTIFACTS = "artifacts"
"""tests/cases/test_field_cases.py runs the case's folders on every device."""

_CASES = "tests/cases/"
_MEMORY = f"{_CASES}test_devices_memory.py::"
_LIMITS = f"{_CASES}test_devices_limits.py::"
_CHILDREN = f"{_CASES}test_devices_children.py::"
_THREADS = f"{_CASES}test_devices_threads.py::"
_NUMERIC = f"{_CASES}test_numeric_cases.py::"
_FAMILIES = f"{_CASES}test_numeric_families.py::test_numbers"
_NVFP4 = f"{_CASES}test_nvfp4_cases.py::"
_USE = f"{_CASES}test_use.py::"

_SEMANTICS = f"{_CASES}test_semantics.py::"
_READER = "tests/unit/test_tosa_reader.py::"
_NUMBERS = "tests/unit/test_verify_numbers.py::"
_VALUES = f"{_SEMANTICS}test_semantics"
_AT_LOAD = f"{_SEMANTICS}test_what_is_refused_at_load"
FAMILIES: dict[int, tuple[str, ...]] = {
    1: (_VALUES, _AT_LOAD),
    4: (f"{_NUMBERS}test_broken_rescales",),
    14: (f"{_SEMANTICS}test_chains_of_clamps",),
    15: (f"{_SEMANTICS}test_chains_of_clamps",),
    23: (_AT_LOAD, f"{_NUMBERS}test_constant_shifts_out_of_range"),
    29: (f"{_SEMANTICS}test_turns_of_a_transform_stay_exact",),
    36: (
        "tests/ops/test_guards.py::test_bad_indices",
        "tests/ops/test_guards.py::test_neighbours_are_left_alone",
    ),
    37: (_VALUES, _AT_LOAD),
    38: (_VALUES, _AT_LOAD, "tests/ops/test_integers.py::test_moves_of_int4_and_int48"),
    40: (f"{_SEMANTICS}test_a_pad_keeps_its_constant", _AT_LOAD),
    41: (_AT_LOAD,),
    42: (
        f"{_READER}test_every_cut_of_a_file_is_refused",
        f"{_READER}test_a_broken_file_is_refused_by_kind",
        f"{_READER}test_short_constants_are_refused",
        f"{_READER}test_padded_constants_are_read",
    ),
    43: (
        f"{_READER}test_versions_that_are_read",
        f"{_READER}test_versions_that_are_refused",
        f"{_READER}test_a_foreign_operator_is_named_with_its_version",
    ),
}
"""Tests of group A that need no artifacts; the others are in `test_semantics`."""

A = (
    *(1, 2, 4, 5, 7, 9, 12, 13, 14, 15, 16, 18, 20, 22, 23, 24, 26, 27, 29),
    *(31, 32, 34, 36, 37, 38, 40, 41, 42, 43),
)

TESTS: dict[str, tuple[str, ...]] = {
    **{f"A{n}": (ARTIFACTS, *FAMILIES.get(n, (_VALUES,))) for n in A},
    "B1": (ARTIFACTS, f"{_MEMORY}test_which_limit_a_tensor_exceeds_is_said_e6"),
    "B2": (
        f"{_MEMORY}test_the_small_window_is_for_what_asks_for_it_b2",
        f"{_MEMORY}test_the_order_of_types_does_not_matter_b2",
        "tests/unit/test_vulkan_memory.py::"
        "test_the_small_window_serves_only_shared_memory",
    ),
    "B5": (f"{_MEMORY}test_mapped_memory_is_always_coherent_b5",),
    "B7": (
        f"{_MEMORY}test_every_step_to_the_host_has_its_barrier_b7",
        f"{_MEMORY}test_without_reading_back_nothing_is_copied_b7",
        "tests/differential/test_fuzz.py::test_every_missing_barrier_is_found",
    ),
    "B8": (ARTIFACTS, f"{_MEMORY}test_many_constants_share_allocations_b8"),
    "B9": (
        ARTIFACTS,
        "tests/backends/test_kernels_layout.py::"
        "test_more_groups_than_one_dimension_holds",
    ),
    "B11": (
        f"{_LIMITS}test_the_operators_run_within_the_least_limits_b11",
        f"{_LIMITS}test_work_groups_fit_every_limit_b11_c26",
    ),
    "B12": (
        ARTIFACTS,
        _FAMILIES,
        "tests/unit/test_nvfp4_choice.py::"
        "test_the_reason_why_a_better_kernel_is_not_taken",
    ),
    "B15": (
        f"{_LIMITS}test_shapes_of_matrices_are_read_b15_b16",
        f"{_LIMITS}test_a_driver_that_cannot_tell_its_matrices_has_none_b15",
        f"{_LIMITS}test_without_the_extension_there_are_none_and_a_reason_b15",
        "tests/faults/test_faults.py::"
        "test_a_device_that_cannot_tell_its_matrix_shapes_has_none",
    ),
    "B16": (
        f"{_LIMITS}test_the_choice_has_a_reason_for_each_better_kernel_b16_e19",
        "tests/unit/test_nvfp4_choice.py::test_tiles_of_any_matrix_fit_the_device",
        "tests/ops/test_nvfp4_fragments.py::test_products",
    ),
    "B18": (ARTIFACTS, "tests/ops/test_guards.py::test_neighbours_are_left_alone"),
    "B20": (
        ARTIFACTS,
        "tests/backends/test_kernels_windows.py::test_matmul_of_fp16_to_fp32",
    ),
    "B21": (
        "tests/ops/test_dots.py::test_a_wrong_answer_is_not_used",
        "tests/ops/test_nvfp4.py::test_a_kernel_with_a_wrong_answer_is_not_used",
        "tests/ops/test_nvfp4_fragments.py::test_another_order_of_elements_is_found",
    ),
    "B22": (
        "tests/ops/test_long_loops.py::test_parts_follow_one_another",
        "tests/ops/test_long_loops.py::test_float_convolutions",
        "tests/ops/test_long_loops.py::test_float_products",
        "tests/backends/test_portions.py::"
        "test_work_is_cut_inside_of_operators_and_the_bits_stay",
    ),
    "B24": (
        "tests/unit/test_vulkan_probe.py::"
        "test_portability_is_asked_for_only_where_offered",
        "tests/backends/test_moltenvk.py::test_devices_that_are_not_conformant_are_listed",
        "tests/backends/test_moltenvk.py::test_the_portability_subset_is_enabled",
        "tests/backends/test_moltenvk.py::"
        "test_the_subset_is_not_asked_for_where_it_is_not_offered",
    ),
    "B25": (
        f"{_CHILDREN}test_without_a_driver_all_says_what_to_install_b25",
        f"{_CHILDREN}test_without_a_loader_all_says_what_to_install_b25",
        "tests/unit/test_vulkan_ffi.py::test_a_missing_loader_says_what_to_install",
        "tests/unit/test_vulkan_ffi.py::test_every_platform_has_names_and_advice",
    ),
    "B27": (
        "tests/unit/test_vulkan_cachefile.py::test_every_flipped_bit_is_noticed",
        "tests/unit/test_vulkan_cachefile.py::test_cut_off_files_are_refused",
        "tests/unit/test_vulkan_cachefile.py::"
        "test_files_of_other_devices_or_drivers_are_refused",
        "tests/unit/test_vulkan_cachefile.py::test_two_writers_never_leave_a_mixture",
        "tests/unit/test_vulkan_cachefile.py::"
        "test_a_folder_that_cannot_be_made_is_one_line",
        "tests/unit/test_vulkan_cachefile.py::"
        "test_a_folder_open_to_everybody_is_not_used",
        "tests/backends/test_vulkan_cache.py::"
        "test_a_damaged_file_is_one_line_and_replaced",
    ),
    "B29": (ARTIFACTS, _FAMILIES, "tests/ops/test_strict_bits.py::test_same_bits"),
    "B30": (ARTIFACTS, _FAMILIES),
    "B31": (
        ARTIFACTS,
        f"{_LIMITS}test_no_kernel_takes_more_than_128_bytes_of_parameters_b31",
    ),
    "B32": (
        ARTIFACTS,
        f"{_LIMITS}test_narrow_types_work_without_narrow_storage_b32",
        "tests/ops/test_guards.py::test_five_bools",
    ),
    "B34": (
        f"{_THREADS}test_devices_come_and_go_b34",
        "tests/backends/test_vulkan_device.py::test_devices_can_be_opened_many_times",
        "tests/stress/test_stress.py::test_vulkan",
    ),
    "B35": (
        "tests/backends/test_vulkan_device.py::"
        "test_structs_survive_the_garbage_collector",
        "tests/backends/test_vulkan_device.py::test_properties_are_stable",
        "tests/unit/test_vulkan_ffi.py::test_scratch_keeps_what_structs_point_to",
    ),
    "B37": (
        f"{_THREADS}test_threads_with_devices_of_their_own_b37",
        f"{_THREADS}test_one_device_belongs_to_one_thread_b37",
        "tests/unit/test_core_threads.py::test_every_method_refuses_another_thread",
    ),
    "B38": (
        f"{_THREADS}test_a_kernel_that_ends_the_driver_is_named_b38",
        "tests/differential/test_diff_processes.py::"
        "test_crash_hang_loss_and_out_of_memory_leave_the_others",
        "tests/differential/test_fuzz_deaths.py::"
        "test_a_crash_is_a_finding_named_and_reduced",
    ),
    "B39": (
        f"{_CHILDREN}test_conformance_without_a_device_is_no_pass_b39",
        f"{_CHILDREN}test_a_diff_with_one_side_is_not_compared_b39",
        "tests/differential/test_diff_faults.py::"
        "test_fewer_than_two_results_is_no_verdict",
    ),
    "B40": (
        f"{_USE}test_a_plausibly_wrong_operator_is_named_b40",
        f"{_USE}test_the_devices_pass_the_self_test_b40",
    ),
    "B42": (
        f"{_THREADS}test_work_that_never_ends_on_wgpu_b42",
        f"{_THREADS}test_a_fence_that_never_signals_b42",
        "tests/unit/test_core_events.py::test_wait_goes_in_bounded_steps",
        "tests/unit/test_core_events.py::"
        "test_wait_returns_pending_when_the_time_is_over",
        "tests/backends/test_vulkan_faults.py::"
        "test_a_copy_that_never_ends_poisons_and_keeps_its_memory",
    ),
    **{f"C{n}": (ARTIFACTS, _FAMILIES) for n in (1, 3, 6, 9, 10, 21, 23)},
    "C7": (
        f"{_NUMERIC}test_no_kernel_has_signed_remainders",
        f"{_NUMERIC}test_remainders_of_negative_numbers",
    ),
    "C11": (
        ARTIFACTS,
        "tests/unit/test_wgpu_probe.py::test_limits_are_those_of_one_binding",
    ),
    "C13": (
        ARTIFACTS,
        "tests/backends/test_wgpu_buffers.py::test_every_offset_and_length",
    ),
    "C14": (f"{_CHILDREN}test_many_programs_leave_nothing_behind_c14",),
    "C15": (
        f"{_CHILDREN}test_the_interpreter_ends_quietly_c15",
        "tests/backends/test_wgpu_programs.py::"
        "test_the_process_may_end_under_pending_work",
    ),
    "C16": (
        f"{_CHILDREN}test_broken_kernels_are_exceptions_c16",
        f"{_CHILDREN}test_odd_buffers_are_exceptions_c16",
        "tests/backends/test_wgpu_kernels.py::test_a_kernel_error_names_the_kernel",
    ),
    "C18": (f"{_CHILDREN}test_wgpu_is_given_wgsl_only_c18",),
    "C20": (
        f"{_NUMERIC}test_widths_are_not_mixed_up",
        "tests/backends/test_wgpu_kernels.py::"
        "test_words_that_do_not_matter_make_no_other_pipeline",
        "tests/unit/test_wgpu_specialize.py::test_constants_stand_in_types_too",
    ),
    "C24": (f"{_USE}test_what_one_side_cannot_hold_is_neither_pass_nor_mismatch_c24",),
    "C26": (
        f"{_LIMITS}test_work_groups_fit_every_limit_b11_c26",
        f"{_LIMITS}test_long_thin_outputs_c26",
        f"{_LIMITS}test_groups_stay_within_each_dimension_c26",
    ),
    "C27": (
        f"{_THREADS}test_a_test_that_hangs_ends_no_conformance_run_c27",
        "tests/conformance/test_corpus.py::test_results",
    ),
    **{
        f"D{number}": (_NVFP4,)
        for number in (1, 2, 4, 5, 7, 9, 10, 12, 13, 16, 17, 19, 20, 22, 23, 25, 27, 28)
    },
    "E1": (
        f"{_USE}test_a_device_is_chosen_by_index_uuid_name_and_variable_e1",
        f"{_USE}test_a_device_that_is_not_there_is_never_replaced_e1",
        "tests/unit/test_vulkan_probe.py::test_two_matches_are_an_error_that_lists_both",
    ),
    "E3": (
        f"{_USE}test_all_that_is_known_of_a_device_e3",
        f"{_USE}test_switched_off_features_are_not_enabled_e3",
    ),
    "E4": (
        f"{_MEMORY}test_free_memory_is_never_more_than_there_is_e4",
        f"{_MEMORY}test_every_heap_is_reported_e4",
    ),
    "E6": (
        f"{_MEMORY}test_which_limit_a_tensor_exceeds_is_said_e6",
        f"{_MEMORY}test_an_intermediate_that_is_too_large_is_named_e6",
        f"{_MEMORY}test_an_exhausted_heap_is_out_of_memory_e6",
        f"{_MEMORY}test_no_suitable_memory_type_is_another_error_e6",
    ),
    "E7": (
        f"{_USE}test_only_needed_pipelines_are_compiled_and_told_e7",
        f"{_USE}test_an_interrupt_ends_the_compilation_e7",
        f"{_USE}test_progress_is_told_through_the_public_face_e7",
        "tests/backends/test_vulkan_cache.py::"
        "test_a_second_run_starts_from_the_first_ones_file",
    ),
    "E9": (
        f"{_USE}test_a_lost_device_names_itself_and_operator_by_operator_the_culprit_e9",
        f"{_USE}test_operator_by_operator_gives_the_same_e9",
    ),
    "E10": (f"{_USE}test_every_run_gives_the_same_bits_e10",),
    "E11": (f"{_USE}test_all_unsupported_operators_are_in_one_error_e11",),
    "E12": (
        "tests/ops/test_switches.py::test_answers_stay_with_one",
        "tests/ops/test_switches.py::test_answers_stay_with_all",
        "tests/ops/test_switches.py::test_the_variable_works_and_reports_tell",
        "tests/unit/test_switches.py::test_an_unknown_name_is_a_warning_and_changes_nothing",
    ),
    "E13": (f"{_USE}test_fp32_is_fp32_e13",),
    "E15": (
        f"{_USE}test_the_third_operator_is_named_e15",
        f"{_USE}test_nan_on_one_side_fails_and_on_both_passes_e15",
        f"{_USE}test_shapes_and_zeros_e15",
    ),
    "E17": (
        f"{_USE}test_the_report_never_fails_and_names_nobody_e17",
        f"{_USE}test_the_home_folder_is_a_tilde_everywhere_e17",
    ),
    "E19": (
        f"{_LIMITS}test_every_way_to_lack_matrices_has_its_reason_e19",
        f"{_LIMITS}test_the_choice_has_a_reason_for_each_better_kernel_b16_e19",
        f"{_NVFP4}test_the_name_of_the_kernel_is_told",
        "tests/ops/test_nvfp4.py::test_a_kernel_with_a_wrong_answer_is_not_used",
    ),
    "E20": (
        "tests/cli/test_readme.py::test_commands_run",
        "tests/unit/test_packaging.py::test_the_wheel_works_without_the_check_out",
        "tests/unit/test_vulkan_ffi.py::test_every_platform_has_names_and_advice",
    ),
}
