"""The tests of every invariant and of every fault of docs/reliability.md.

Paths are below ``tests/``; behind ``::`` stands a part of a test's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

INVARIANTS: Final[Mapping[str, Sequence[str]]] = {
    "No row influences another, neither by loud audio nor by non-finite numbers": (
        "backends/test_contract_state.py::loud_neighbour",
        "backends/test_contract_state.py::poison_dies",
        "serve/hosting/test_models.py::loud_callers_of_one_model",
    ),
    "In a fixed batch other rows never change a row's bits; otherwise they do in listed stages only": (
        "backends/test_contract_state.py::order_and_the_others_change_nothing",
        "backends/test_batch_invariance.py::listed_stages",
    ),
    "A reset row equals a fresh one": (
        "backends/test_contract_state.py::reset_equals_fresh",
        "backends/test_contract_calls.py::warm_up",
    ),
    "A tick changes only the rows that it names": (
        "backends/test_contract_state.py::not_named_does_not_move",
        "serve/calls/test_resume.py::detached_call_takes_no_step",
    ),
    "Streaming equals offline": (
        "backends/torch/test_mimi.py::offline_equals_upstream",
        "serve/dialects/test_parity.py::staggered_callers",
    ),
    "State stays correct past the wrap of its rings": (
        "backends/test_contract_state.py::past_the_ring_wrap",
        "backends/test_contract_state.py::snapshot_past_the_wrap",
    ),
    "The same seed and audio give the same tokens on every row and backend": (
        "backends/test_contract_sampling.py::same_seed_same_tokens",
        "models/test_sampling.py::no_row_influences_another",
        "models/test_sampling.py::tokens_are_the_vectors",
    ),
    "Sampling parameters belong to a session and apply from its next frame": (
        "backends/test_contract_sampling.py::parameters_survive_a_reset",
        "ipc/test_contract.py::parameters_change_with_the_next_frame",
    ),
    "The state of a row can be saved, moved and restored": (
        "backends/test_contract_state.py::snapshot_continues_bit_identically",
        "backends/test_transfer.py::goes_on_in_another_process",
        "engine/test_row_state.py::keeps_every_bit",
    ),
    "A row is never shared, and never idle while a caller waits": (
        "engine/test_admission.py::never_shared_and_never_idle",
        "ipc/test_contract.py::refusal_does_not_wait_for_a_step",
    ),
    "A full server answers 503 with Retry-After, Kyutai's error, or a place in the queue": (
        "serve/dialects/test_chat.py::full_server_is_503",
        "serve/dialects/test_asr.py::without_a_free_row",
        "serve/hosting/test_processes.py::places_in_the_queue",
    ),
    "slots = auto takes what memory and time allow; a number that cannot fit is refused with its bytes": (
        "engine/test_sizing.py::memory_decides",
        "engine/test_sizing.py::time_decides",
        "engine/test_capacity.py::refused_with_all_the_bytes",
    ),
    "Admission stops while deadlines are missed, then resumes": (
        "engine/test_admission.py::late_frames_stop_admission",
        "engine/test_pressure.py::falls_by_itself",
    ),
    "Every input frame is answered, lost or dropped, and counted": (
        "engine/test_isolation.py::TestCallers",
        "engine/test_threads.py::no_frame_goes_astray",
        "ipc/test_contract.py::frames_come_back_in_order",
    ),
    "Every metric has help text and its labels": (
        "engine/test_engine.py::every_metric_has_help",
        "docs/test_metrics.py::exposes_every_metric",
    ),
    "A failed step ends only the sessions of its rows, with an error message": (
        "engine/test_failures.py::failed_step_ends_only",
        "ipc/test_contract.py::row_that_fails_ends_its_call_alone",
        "backends/test_faults.py::working_device_ends_the_rows",
    ),
    "A lost device ends every session with 1011 and the process with exit code 70": (
        "engine/test_failures.py::lost_device_ends_everybody_once",
        "serve/hosting/test_lifecycle.py::lost_device_ends_the_process",
    ),
    "/healthz fails when no engine of a model works; /readyz when the server is full or draining": (
        "serve/operator/test_http.py::health_and_readiness",
        "serve/operator/test_http.py::stuck_step_fails_the_health_check",
        "serve/hosting/test_models.py::one_dead_engine",
    ),
    "A silent peer is closed; time in which the server does not read does not count": (
        "serve/transport/test_peers.py::half_open_peer",
        "serve/transport/test_peers.py::flooding_writer_is_not_taken_for_dead",
    ),
    "If one of several engines hangs, it ends with its calls; the others continue": (
        "supervisor/test_supervisor.py::hangs_ends_while_another_works",
        "ipc/test_engine_group.py::waits_for_an_engine_that_hangs",
    ),
    "A drain admits no call, lets calls finish within a limit, then closes them with 1001": (
        "serve/hosting/test_lifecycle.py::sigterm_lets_a_call_finish",
        "serve/hosting/test_lifecycle.py::closed_with_1001",
    ),
    "A caller that reads too slowly loses its oldest audio, counted; memory stays bounded": (
        "serve/transport/test_peers.py::slow_reader_loses_its_oldest",
        "engine/test_backpressure.py::session_without_room",
    ),
    "A recording or a text loses nothing: the server slows its sender": (
        "engine/test_backpressure.py::recording_of_any_length",
        "serve/dialects/test_tts.py::no_faster_than_it_is_taken",
    ),
    "Frames are never torn or mixed between sessions, across threads and processes": (
        "engine/test_torn_frames.py::no_frame_is_torn",
        "ipc/test_faults.py::no_frame_is_torn_or_anothers",
    ),
    "A tick runs no Python code for each row": ("engine/test_host_cost.py::no_more_python_than_one_of_few",),
    "A fault of one front end affects no other call": (
        "ipc/test_faults.py::killed_leaves_its_rows",
        "ipc/test_faults.py::nonsense_in_a_front_ends_memory",
    ),
    "A resumable call makes only the transitions of its table": (
        "engine/test_resume_states.py::takes_every_transition",
        "engine/test_resume_states.py::no_transition_that_is_not",
    ),
    "The protocol is equal in Python and JavaScript": (
        "protocol/test_vectors.py::read_and_written_as_the_vectors",
        "web/test_scripts.py::in_node",
    ),
    "Stock clients work unchanged": (
        "stock/test_live_clients.py::spoken_exchange",
        "stock/test_realtime_clients.py::spoken_exchange",
        "stock/test_rest_clients.py::python_package",
        "serve/dialects/test_stock_client.py",
    ),
    "Imports point down, and light modules stay light": (
        "repo/test_structure.py::checks_the_product_by_the_report",
        "repo/test_light_imports.py::import_stays_light",
    ),
    "The server connects only to hosts that its operator has named": (
        "repo/test_no_connections.py::connects_to_nothing",
    ),
}

FAULTS: Final[Mapping[str, Sequence[str]]] = {
    "quiet": ("engine/test_threads.py::no_frame_goes_astray",),
    "front_end_killed": (
        "serve/hosting/test_processes.py::one_of_two_front_ends_is_killed",
        "serve/hosting/test_processes_resume.py::killed_under_sixteen_calls",
    ),
    "node_failure": ("serve/hosting/test_processes.py::without_its_engine_every_call_is_told",),
    "supervisor_killed": ("supervisor/test_stopped.py::killed_supervisor_leaves_no_process",),
    "front_end_stopped": ("supervisor/test_supervisor.py::stopped_front_end_is_replaced",),
    "engine_stopped": (
        "serve/hosting/test_processes.py::stopped_engine_delays",
        "supervisor/test_supervisor.py::stopped_for_long_goes_on",
    ),
    "supervisor_stopped": ("supervisor/test_stopped.py::stopped_supervisor_blames_nobody",),
    "server_leave": ("serve/hosting/test_lifecycle.py::closed_with_1001",),
    "signal_reconnect": ("serve/calls/test_resume.py::twenty_cuts",),
    "disconnect_on_resume": ("serve/calls/test_resume.py::two_racing_resumes",),
    "reset_while_paused": ("serve/transport/test_hanging_up.py::free_although_the_reader_pauses",),
    "no_open_files": ("serve/transport/test_connection_faults.py::without_open_files",),
    "upgrades": ("serve/hosting/test_overload.py::burst_of_connections",),
    "subscriber_bandwidth": ("serve/transport/test_peers.py::slow_reader_loses_its_oldest",),
    "slow_writers": ("serve/hosting/test_limits.py::header_that_does_not_end",),
    "network_delay": (
        "clients/test_jitter.py",
        "web/test_scripts.py::in_node",
    ),
    "packet_loss": (
        "clients/test_jitter.py",
        "web/test_scripts.py::in_node",
    ),
    "clock_step": ("repo/test_clocks.py::monotonic_clock_alone",),
    "no_ring_memory": ("ipc/test_faults.py::no_memory_are_refused_with_their_bytes",),
    "disk_full": (
        "serve/media/test_recording.py::disk_that_is_full_at_the_end",
        "serve/media/test_recording.py::full_disk_cuts_short",
    ),
    "disk_hangs": ("serve/media/test_recording.py::disk_that_does_not_keep_up",),
    "device_lost": ("serve/hosting/test_lifecycle.py::lost_device_ends_the_process",),
    "backend_nan": ("serve/routes/test_openai_speech.py::cannot_be_encoded",),
    "backend_hangs": (
        "engine/test_failures.py::whatever_call_into_the_backend_hangs",
        "serve/operator/test_http.py::stuck_step",
    ),
    "backend_slow": ("engine/test_engine.py::admission_stops_however_slow",),
}
