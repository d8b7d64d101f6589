"""The table of bounds in docs/reliability.md matches the options; each bound has a reason and tests.

Bounds that are constants have their reasons in their docstrings.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from antiphon.config import ServerConfig
from antiphon.limits import Limits
from antiphon.option import AUTO, table_of
from tests.docs.named_tests import has_test

ROOT = Path(__file__).parents[2]
HEAD = "| name | default | reason, and effect above the bound |"

TESTS: Mapping[str, Sequence[str]] = {
    "max_connections": (
        "serve/hosting/test_limits.py::stay_below_the_limit_of_open_files",
        "supervisor/test_connections.py::beyond_the_total_wait",
    ),
    "max_connections_per_address": ("supervisor/test_connection_bounds.py::a_quarter_of_all_connections",),
    "max_new_connections_per_s": ("supervisor/test_connections.py::beyond_the_rate_wait",),
    "max_new_connections_per_address_per_s": (
        "supervisor/test_connection_bounds.py::opens_a_quarter",
        "supervisor/test_connection_bounds.py::beside_a_flood",
    ),
    "supervisor/connection_queue.py::MAX_WAITING": (
        "supervisor/test_connection_queue.py::half_open_connections_delay_no_newcomer",
        "supervisor/test_connections.py::overtakes_half_open",
    ),
    "serve/hosting/front_end.py::HEAD_S": (
        "serve/hosting/test_limits.py::without_a_whole_request",
        "serve/hosting/test_tcp.py::between_requests_makes_room",
        "supervisor/test_connections.py::without_a_request_makes_room",
    ),
    "serve/hosting/front_end.py::MAX_LINKS": ("serve/hosting/test_front_end.py::links_are_bounded",),
    "connect_timeout_s": (
        "serve/hosting/test_limits.py::tls_handshake_that_does_not_end",
        "serve/dialects/test_realtime_peer.py::never_connects_frees_its_row",
    ),
    "serve/transport/peer.py::GATHER_S": ("serve/dialects/test_realtime_peer.py::stun_server_is_silent",),
    "protocol/sdp.py::MAX_OFFER_BYTES": ("protocol/test_sdp.py::refused_says_why",),
    "protocol/sdp.py::MAX_LINES": ("protocol/test_sdp.py::refused_says_why",),
    "protocol/sdp.py::MAX_CANDIDATES": ("protocol/test_sdp.py::refused_says_why",),
    "serve/media/peer_sound.py::MOST_AHEAD_S": (
        "serve/media/test_peer_sound.py::far_ahead_of_the_clock_is_dropped",
    ),
    "serve/media/peer_sound.py::MOST_WAITING": ("serve/media/test_peer_sound.py::burst_is_cut",),
    "serve/hosting/app.py::KEEPALIVE_TIMEOUT_S": ("serve/hosting/test_limits.py::header_that_does_not_end",),
    "max_message_bytes": (
        "serve/transport/test_frames.py::refused_before_it_is_here",
        "serve/dialects/test_chat.py::over_the_limit_is_closed_with_1009",
    ),
    "protocol/audiosocket.py::MAX_AUDIO_BYTES": ("protocol/test_audiosocket.py::refused_by_its_head",),
    "protocol/asterisk.py::MAX_MESSAGE_BYTES": ("protocol/test_asterisk.py::cannot_be_followed",),
    "protocol/json_speech.py::MAX_MESSAGE_CHARS": ("protocol/test_json_speech.py::cannot_be_followed",),
    "audio/wav_input.py::MAX_HEAD_BYTES": ("audio/test_wav_input.py::no_wav_is_refused",),
    "protocol/wyoming.py::MAX_JSON_BYTES": ("protocol/test_wyoming.py::refused_before_it_is_kept",),
    "protocol/wyoming.py::MAX_PAYLOAD_BYTES": ("protocol/test_wyoming.py::refused_before_it_is_kept",),
    "protocol/wyoming.py::MAX_PING_CHARS": ("protocol/test_wyoming.py::cannot_be_followed_is_named",),
    "serve/calls/text_reply.py::MAX_RUNNING": ("serve/dialects/test_wyoming.py::as_many_as_it_may",),
    "agent/history.py::MAX_ENTRIES": ("agent/test_history.py::forgotten_and_bounded",),
    "agent/history.py::MAX_CHARS": ("agent/test_history.py::characters_are_bounded",),
    "agent/chat_stream.py::MAX_LINE_BYTES": ("agent/test_text_model.py::a_fault_is_named",),
    "agent/chat_stream.py::MAX_EVENTS": ("agent/test_text_model.py::events_of_a_reply_are_bounded",),
    "agent/chat_stream.py::MAX_REPLY_CHARS": ("agent/test_text_model.py::endless_reply_is_cut",),
    "agent/chat_stream.py::MAX_TOOL_CALLS": ("serve/calls/test_agent_failures.py::a_failure_is_spoken",),
    "agent/chat_stream.py::MAX_ARGUMENT_CHARS": ("serve/calls/test_agent_failures.py::a_failure_is_spoken",),
    "agent/chat_stream.py::MAX_NAME_CHARS": ("agent/test_text_model.py::a_fault_is_named",),
    "agent/text_model.py::MAX_LIST_BYTES": ("agent/test_text_model.py::no_more_of_a_list_of_models",),
    "agent/speakable.py::MAX_HELD_CHARS": ("agent/test_speakable.py::what_is_held_is_bounded",),
    "serve/calls/agent.py::MAX_NEWS": ("serve/calls/test_agent_audio.py::too_many_events_wait",),
    "serve/calls/transcriber.py::MAX_PENDING_SAMPLES": (
        "serve/calls/test_agent_audio.py::a_second_of_it_waits_for_the_recogniser",
    ),
    "serve/calls/agent_reply.py::MAX_READY": ("serve/calls/test_agent_reply.py::waits_with_the_synthesiser",),
    "protocol/realtime_tools.py::MAX_TOOLS": ("protocol/test_field_bounds.py::lists_of_a_response",),
    "protocol/realtime_tools.py::MAX_INPUT": ("protocol/test_field_bounds.py::lists_of_a_response",),
    "protocol/realtime_tools.py::MAX_ITEM_CHARS": ("protocol/test_field_bounds.py::item_for_a_text_model",),
    "protocol/realtime_tools.py::MAX_PARTS": ("protocol/test_field_bounds.py::item_for_a_text_model",),
    "protocol/live.py::MAX_APPENDED_CHARS": ("protocol/test_live.py::models_that_take_text",),
    "serve/dialects/live_agent.py::MAX_SILENT_FRAMES": (
        "serve/dialects/test_live_agent.py::silence_that_a_client_has_not_read",
    ),
    "serve/dialects/live_agent.py::MAX_DELEGATIONS": (
        "serve/dialects/test_live_agent.py::oldest_of_too_many_delegations",
    ),
    "serve/routes/live_watcher.py::MAX_WATCHERS": ("serve/routes/test_live_watcher.py::no_more_than_there",),
    "protocol/realtime_input.py::MAX_TURNS": ("protocol/test_realtime_reply.py::turns_that_wait",),
    "serve/calls/captions.py::MAX_BEHIND_S": ("serve/dialects/test_live_recogniser.py::too_slow",),
    "serve/calls/synthesiser.py::MAX_PENDING_WORDS": (
        "serve/calls/test_long_texts.py::no_further_than_there_is_room",
    ),
    "ipc/message_socket.py::MAX_WAITING": ("ipc/test_message_socket.py::never_reads_is_given_up",),
    "engine/session_manager.py::MAX_UPDATES": ("engine/test_session.py::asked_for_during_one_step",),
    "serve/hosting/uploads.py::MAX_JOBS": ("serve/calls/test_admission_awaited.py::no_more_wait",),
    "serve/access/line_writer.py::MAX_LINES": ("serve/access/test_usage.py::beyond_those_that_may_wait",),
    "max_voice_bytes": ("serve/hosting/test_limits.py::may_be_larger_where_it_may_hold_a_voice",),
    "max_messages_per_s": ("serve/transport/test_peers.py::flooding_writer_is_slowed",),
    "max_bytes_per_s": ("serve/hosting/test_limits.py::bytes_beyond_the_rate",),
    "serve/transport/socket.py::READ_AHEAD_BYTES": (
        "serve/transport/test_hanging_up.py::read_ahead_is_bounded",
    ),
    "max_unsent_bytes": ("serve/transport/test_peers.py::slow_reader_loses_its_oldest",),
    "close_timeout_s": ("serve/transport/test_socket.py::never_answers_a_close",),
    "input_frames": ("ipc/test_contract.py::outruns_a_live_model",),
    "output_frames": ("ipc/test_contract.py::slow_reader_finds_a_gap",),
    "protocol/kyutai_tts.py::MAX_TEXT_BYTES": (
        "serve/calls/test_long_texts.py::too_long_is_refused_before_it_is_read",
    ),
    "models/script.py::MAX_WORD_TOKENS": ("serve/routes/test_tts_by_post.py::cannot_be_spoken_is_told_why",),
    "protocol/packed.py::MAX_ITEMS": ("serve/calls/test_long_texts.py::holds_is_bounded",),
    "protocol/packed.py::MAX_CONTAINERS": ("serve/calls/test_long_texts.py::nested_arrays_take_no_memory",),
    "protocol/packed.py::MAX_FIELDS": ("serve/calls/test_long_texts.py::holds_is_bounded",),
    "protocol/event_text.py::MAX_EVENT_CHARS": ("protocol/test_field_bounds.py::beyond_its_bound",),
    "protocol/event_text.py::MAX_PLAIN_CHARS": ("protocol/test_field_bounds.py::beyond_its_bound",),
    "protocol/payload.py::MAX_VALUES": ("protocol/test_worst_inputs.py::costs_little",),
    "serve/transport/socket.py::AHEAD_S": ("protocol/test_worst_inputs.py::costs_little",),
    "serve/transport/socket.py::CPU_SHARE": ("serve/transport/test_socket.py::share_of_the_processor",),
    "protocol/live_session.py::MAX_MESSAGES": ("protocol/test_field_bounds.py::beyond_its_bound",),
    "protocol/live_session.py::MAX_INSTRUCTIONS_CHARS": ("protocol/test_field_bounds.py::beyond_its_bound",),
    "protocol/realtime.py::MAX_METADATA": ("protocol/test_field_bounds.py::beyond_its_bound",),
    "protocol/realtime_items.py::MAX_ITEMS": ("protocol/test_realtime_reply.py::items_are_bounded",),
    "protocol/realtime_items.py::MAX_KEPT_CHARS": ("protocol/test_realtime_reply.py::items_are_bounded",),
    "liveness_timeout_s": ("serve/transport/test_peers.py::half_open_peer",),
    "handshake_timeout_s": (
        "serve/calls/test_idle.py::no_first_audio",
        "serve/transport/test_peers.py::says_nothing_is_closed",
        "serve/dialects/test_wyoming.py::sends_nothing_is_closed",
        "serve/dialects/test_asterisk.py::keys_alone",
    ),
    "idle_timeout_s": (
        "serve/calls/test_idle.py::keep_a_session",
        "serve/calls/test_idle.py::of_a_conversation",
        "serve/calls/test_idle.py::of_a_recogniser",
        "serve/calls/test_idle.py::without_words",
        "serve/calls/test_idle.py::live_session",
        "serve/calls/test_idle.py::realtime_session",
        "serve/calls/test_idle.py::transcription_session",
        "serve/calls/test_idle.py::read_too_slowly",
    ),
    "quiet_timeout_s": (
        "serve/calls/test_idle.py::announced_silence",
        "serve/calls/test_idle.py::realtime_session",
    ),
    "max_sessions_per_address": (
        "serve/hosting/test_limits.py::a_quarter_of_the_rows",
        "serve/hosting/test_limits.py::small_server",
    ),
    "max_sessions_per_key": (
        "serve/access/test_access.py::as_many_sessions_as_its_line_says",
        "serve/hosting/test_processes.py::limits_of_a_key",
    ),
    "max_seconds_per_key": ("serve/access/test_usage_of_calls.py::may_use_its_seconds",),
    "max_queue": ("engine/test_admission.py::first_come_first_served_and_bounded",),
    "max_wait_s": ("protocol/test_chat.py::wait_is_granted_whole_or_refused",),
    "drain_timeout_s": ("serve/hosting/test_lifecycle.py::left_at_the_deadline",),
    "resume_window_s": ("serve/calls/test_resume.py::not_resumed_in_time",),
    "resume_yield_s": ("serve/calls/test_resume.py::gives_way",),
    "engine/resume.py::MAX_NOTES": ("engine/test_resuming.py::too_much_that_was_not_acknowledged",),
    "engine/resume.py::MAX_NOTES_BYTES": ("engine/test_resuming.py::too_much_that_was_not_acknowledged",),
    "serve/calls/local_resume.py::MAX_UNACKNOWLEDGED": (
        "serve/calls/test_agent_resume.py::call_with_too_much_unacknowledged",
    ),
    "serve/calls/local_resume.py::MAX_UNACKNOWLEDGED_BYTES": (
        "serve/calls/test_agent_resume.py::call_with_too_much_unacknowledged",
    ),
    "serve/calls/local_resume.py::MAX_GAPS": ("serve/calls/test_local_resume.py::last_gaps_in_the_numbers",),
    "serve/calls/local_resume.py::MAX_SKIPPED_FRAMES": (
        "serve/calls/test_local_resume.py::ahead_by_a_bounded_number",
    ),
    "protocol/unmute.py::MAX_LOG_CHARS": ("protocol/test_unmute.py::repeated_is_bounded",),
    "max_hand_overs": ("serve/routes/test_hand_over_routes.py::no_call_or_too_much",),
    "hand_over_timeout_s": ("engine/test_handing_over.py::cannot_have_stays",),
    "max_upload_bytes": ("serve/routes/test_upload.py::too_many_bytes",),
    "max_upload_s": ("serve/routes/test_upload.py::lasts_too_long",),
    "serve/routes/asr_file.py::MIN_BYTES_PER_S": ("serve/routes/test_upload.py::few_bytes_holds_no_row",),
    "upload_timeout_s": ("serve/routes/test_upload.py::trickles_in",),
    "min_upload_bytes_per_s": ("serve/routes/test_upload.py::keep_its_pace",),
    "max_uploads_per_address": (
        "serve/routes/test_upload.py::so_many_recordings_at_once",
        "supervisor/test_connection_bounds.py::over_all_front_ends",
    ),
    "serve/hosting/uploads.py::MAX_UPLOADS": (
        "serve/routes/test_openai_transcription.py::so_many_are_received",
    ),
    "serve/hosting/uploads.py::LARGEST_ON_DISK": (
        "serve/routes/test_openai_transcription.py::on_disk_are_bounded_together",
        "serve/routes/test_openai_transcription.py::full_disk_is_a_refusal",
    ),
    "record_max_s": ("serve/media/test_recording.py::recorded_for_so_long",),
}
"""By a bound's name, part of the name of each function that tests it, after its file."""


class Row(NamedTuple):
    """A row of the table, its cells without marks."""

    name: str
    default: str
    reason: str


def read_table() -> list[Row]:
    lines = (ROOT / "docs" / "reliability.md").read_text().splitlines()
    rows = []
    for line in lines[lines.index(HEAD) + 2 :]:
        if not line.startswith("|"):
            break
        name, default, reason = (cell.strip() for cell in line.strip("|").split(" | "))
        rows.append(Row(name.strip("`"), default.strip("`"), reason))
    return rows


ROWS = read_table()


def default_of(name: str) -> str:
    """What the code has."""
    found = table_of(ServerConfig)[name].default
    return AUTO if found is None else str(found)


def reason_of(name: str) -> str:
    """The docstring of the constant ``path.py::CONSTANT``, which may belong to a group of constants."""
    path, _, constant = name.partition("::")
    body = ast.parse((ROOT / "server/antiphon" / path).read_text(encoding="utf-8")).body
    assigned = [
        ast.unparse(node).partition(":")[0].partition(" = ")[0]
        if isinstance(node, ast.Assign | ast.AnnAssign)
        else ""
        for node in body
    ]
    after = assigned.index(constant)
    while assigned[after]:
        after += 1
    match body[after]:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def missing_tests(name: str) -> list[str]:
    return [named for named in TESTS[name] if "::" not in named or not has_test(named)]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_bound_has_the_default_of_the_code_a_reason_and_a_test(row: Row) -> None:
    assert row.default == default_of(row.name)
    assert row.reason
    assert missing_tests(row.name) == []


@pytest.mark.parametrize("name", [name for name in TESTS if "::" in name])
def test_a_bound_that_is_a_constant_has_a_reason_and_a_test(name: str) -> None:
    assert reason_of(name)
    assert missing_tests(name) == []


def test_every_limit_of_the_configuration_is_in_the_table() -> None:
    names = [row.name for row in ROWS]
    assert {field.name for field in dataclasses.fields(Limits)} - set(names) == set()
    assert sorted(names) == sorted(name for name in TESTS if "::" not in name)
