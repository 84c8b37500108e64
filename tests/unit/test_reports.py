"""Which test answers which report from people who run such systems?

Public bug reports about gateways, proxies, SDKs and policy engines, each turned into an input for us and what is right
there. A report stands here as soon as what it is about exists; the tests of it name it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
REPORTS = """
BL-001
  flow/test_hostile_callers.py test_a_malformed_body_is_an_error_one_record_and_nothing_else
  unit/protocols/test_jsonrpc.py test_a_body_of_the_corpus_meets_its_verdict
  unit/protocols/test_jsonrpc.py test_a_batch_is_refused_however_long
BL-003
  flow/test_identity_flow.py test_the_callers_credential_stays_here_and_the_upstreams_own_goes_there
  flow/test_upstream_credentials.py test_the_callers_token_is_shown_to_nobody_but_by_passthrough
BL-005
  flow/test_evidence.py test_whatever_stage_a_call_ended_at_its_record_has_what_was_known
BL-008
  flow/test_evidence.py test_every_answered_request_has_exactly_one_terminal_record
  flow/test_evidence.py test_the_metrics_are_the_audit_summed
BL-009
  a2a/test_one_operation.py test_a_task_made_by_one_binding_is_there_for_every_other_also_after_a_restart
  a2a/test_task_api.py test_the_task_is_there_over_a2a_too_and_for_its_owner_only
  flow/test_cli_agents.py test_it_answers_in_every_version_and_binding
BL-010
  flow/test_listed_and_called.py test_a_tool_without_a_usable_schema_is_not_listed_and_ten_good_ones_are
  unit/upstreams/test_catalogue.py test_one_bad_schema_quarantines_its_tool_alone
BL-014
  flow/test_federation.py test_two_servers_with_the_same_tool_are_told_apart_by_name
  flow/test_federation.py test_a_server_added_at_run_time_is_there_at_once
  flow/test_listed_and_called.py test_two_servers_with_the_same_tool_never_meet
  flow/test_session_ends.py test_a_session_goes_on_when_a_second_server_is_added
  flow/test_pins.py test_two_servers_with_one_name_of_a_tool_have_pins_apart
BL-015
  flow/test_identity_flow.py test_what_a_proxy_would_say_changes_nothing
  flow/test_identity_flow.py test_over_tls_a_header_is_no_client_certificate
  flow/test_mutual_tls.py test_a_named_proxy_tells_who_came_to_it_and_another_does_not
  flow/test_mutual_tls.py test_a_proxy_behind_mutual_tls_is_known_by_its_certificate
BL-018
  flow/test_breaker.py test_a_dead_upstream_costs_the_others_nothing
  flow/test_upstream_trouble.py test_health_is_told_at_once_while_every_upstream_hangs
BL-019
  flow/test_vanishing_callers.py test_hundreds_of_callers_who_leave_while_they_are_answered
  unit/http/client/test_client.py test_two_hundred_broken_streams_leave_nothing_behind
BL-020
  unit/http/client/test_who_goes_out.py test_an_address_of_another_scheme_is_refused_where_it_stands
BL-021
  flow/test_hostile_upstream.py test_a_list_shows_nothing_that_is_hidden_however_it_is_said
  flow/test_lists.py test_a_list_in_a_stream_shows_what_may_be_used_in_its_order
  flow/test_lists.py test_a_list_that_cannot_be_read_is_an_error_and_shows_nothing
BL-022
  flow/test_admin.py test_a_reload_takes_new_rules_and_a_bad_file_keeps_the_old_ones
  unit/policy/test_files.py test_a_pattern_of_another_language_is_a_fault_at_its_place
BL-024
  flow/test_limit_outage.py test_an_outage_is_told_at_once_and_ends_by_itself
  flow/test_limit_outage.py test_callers_in_flight_hear_of_an_outage_together
  flow/test_limit_outage.py test_a_network_that_swallows_everything_costs_no_more_than_the_promise
BL-025
  flow/test_hostile_callers.py test_a_malformed_body_is_an_error_one_record_and_nothing_else
  unit/protocols/test_jsonrpc.py test_a_body_of_the_corpus_meets_its_verdict
BL-026
  unit/policy/test_files.py test_the_same_grants_load_the_same_however_they_are_written
  unit/policy/test_files.py test_what_is_not_understood_is_a_fault_at_its_place
BL-027
  flow/test_hostile_callers.py test_a_malformed_body_is_an_error_one_record_and_nothing_else
  unit/protocols/test_jsonrpc.py test_a_body_of_the_corpus_meets_its_verdict
  unit/protocols/test_jsonrpc.py test_a_malformed_body_is_called_malformed_and_never_denied
BL-028
  flow/test_audit_trouble.py test_a_frozen_disk_is_a_503_in_time_and_holds_up_nothing_else
  flow/test_kill.py test_whatever_was_answered_is_on_record_after_a_kill
  unit/audit/test_file_sink.py test_what_is_written_in_part_is_taken_back_and_refused
  unit/audit/test_file_sink.py test_best_effort_counts_what_it_loses_and_goes_on
BL-029
  flow/test_stdio.py test_nothing_is_ever_started_from_a_request
  flow/test_agent_commands.py test_no_body_brings_in_what_nobody_listens_to
  unit/admin/test_requests.py test_what_is_unknown_is_refused_and_never_named
BL-031
  a2a/test_who_calls.py test_a_stream_wants_a_credential_as_every_call_does
BL-032
  flow/test_federation.py test_the_most_permissive_policy_lists_everything_over_streams
  flow/test_listed_and_called.py test_the_most_permissive_policy_lists_everything
BL-034
  unit/policy/test_patterns.py test_only_the_star_is_special
BL-035
  flow/test_federation.py test_what_is_listed_is_what_can_be_called_at_every_server
  flow/test_listed_and_called.py test_what_is_listed_is_what_can_be_called
  unit/policy/test_against_plain_casbin.py test_what_is_listed_is_what_some_call_may_do
BL-036
  flow/test_breaker.py test_a_dead_upstream_costs_the_others_nothing
  flow/test_federation.py test_a_server_that_is_down_or_hangs_is_named_and_costs_the_others_nothing
  flow/test_upstream_trouble.py test_an_upstream_that_is_not_there_harms_no_other
  flow/test_upstream_trouble.py test_a_misspelt_option_of_an_upstream_refuses_the_start
BL-037
  flow/test_streams.py test_a_storm_of_reconnects_costs_no_list_no_call_and_no_other_client
BL-038
  flow/test_upstream_trouble.py test_progress_is_passed_on_at_once
  flow/test_upstream_trouble.py test_two_minutes_of_progress_pass_as_they_come_up_to_the_deadline
BL-039
  flow/test_identity_flow.py test_what_a_proxy_would_say_changes_nothing
BL-040
  flow/test_breaker.py test_a_server_without_ping_and_one_that_only_takes_posts_stay_well
BL-041
  flow/test_limit_outage.py test_scripts_that_are_flushed_and_a_store_that_restarts_cost_a_moment
  unit/limits/test_redis_store.py test_forgotten_scripts_cost_no_call
BL-043
  flow/test_session_ends.py test_a_hundred_cycles_of_every_kind_leave_nothing
  unit/upstreams/test_sessions.py test_thousands_of_each_cycle_leave_nothing
BL-048
  flow/test_identity_flow.py test_a_rotated_key_is_known_after_one_fetch_however_many_ask
  unit/identity/test_jwks.py test_thousands_of_unknown_key_ids_cost_one_fetch
  unit/identity/test_jwks.py test_a_new_key_is_taken_within_ten_seconds_even_in_a_storm
  unit/identity/test_jwks.py test_a_reload_fetches_once_and_strangers_after_it_wait_their_ten_seconds
BL-049
  flow/test_identity_flow.py test_no_spelling_of_a_path_is_another_path
  unit/gateway/test_routing.py test_of_two_hundred_spellings_one_is_served_with_and_without_a_slash
BL-050
  unit/protocols/test_mcp_headers.py test_headers_and_body_meet_the_verdict_of_the_corpus
BL-051
  unit/http/client/test_who_goes_out.py test_whoever_opens_a_connection_has_its_address_from_the_operator
  unit/http/client/test_guarded_client.py test_an_internal_network_is_reached_once_it_is_opened
BL-052
  flow/test_identity_flow.py test_no_verb_goes_around_the_question
BL-055
  a2a/test_pushing.py test_where_nobody_may_be_called_is_refused_before_the_agent_hears_of_it
  a2a/test_task_api.py test_what_is_no_order_is_refused_at_once
  a2a/test_whose_task.py test_to_everybody_but_its_owner_a_task_is_missing_in_every_state
  unit/http/client/test_guarded_client.py test_none_of_the_places_where_no_callback_may_go_is_connected_to
  unit/http/client/test_guarded_client.py test_a_name_that_changes_its_mind_gains_nothing
  unit/http/client/test_guarded_client.py test_no_redirect_is_followed
BL-059
  flow/test_call.py test_however_a_call_ends_on_whatever_route_its_slot_is_free_at_once
  flow/test_call.py test_a_caller_who_leaves_any_route_leaves_its_slot
  flow/test_kill.py test_slots_of_a_killed_process_come_back_within_two_leases
  unit/limits/test_limiter.py test_however_a_call_ends_its_slot_is_free_and_its_charges_are_kept_only_if_forwarded
  unit/limits/test_redis_store.py test_every_key_has_an_end
BL-060
  flow/test_sessions.py test_what_a_server_sends_reaches_only_its_own_client
  peers/test_apart.py test_each_of_many_clients_hears_what_is_its_own_and_nothing_else
BL-061
  flow/test_pins.py test_a_changed_tool_is_off_in_list_and_call_until_it_is_as_pinned
  unit/upstreams/test_pins.py test_order_and_white_space_do_not_count
  unit/upstreams/test_pins.py test_each_member_counts_and_is_named
BL-062
  flow/test_hostile_callers.py test_a_malformed_body_is_an_error_one_record_and_nothing_else
  unit/protocols/test_jsonrpc.py test_a_body_of_the_corpus_meets_its_verdict
  unit/protocols/test_jsonrpc.py test_no_other_spelling_of_an_envelope_key_is_taken
  unit/protocols/test_jsonrpc.py test_no_other_spelling_of_a_parameter_is_taken
BL-063
  flow/test_call.py test_of_fifty_calls_at_once_through_four_sidecars_five_pass_a_limit_of_five
  flow/test_limit_exactness.py test_four_processes_of_64_tasks_admit_exactly_1000
BL-064
  flow/test_listed_and_called.py test_denied_unknown_and_hidden_look_alike_and_are_told_apart_in_the_audit
BL-065
  unit/observability/test_metrics.py test_a_scrape_stays_quick_however_much_happened
BL-066
  flow/test_stdio.py test_two_users_have_two_counters_and_a_shared_program_one
  flow/test_sessions.py test_users_who_share_an_upstream_credential_do_not_share_its_session
  peers/test_apart.py test_two_users_of_one_upstream_credential_have_sessions_apart
BL-068
  unit/limits/test_counters.py test_a_steady_caller_exactly_at_the_limit_passes_no_more_than_the_limit_across_hour_edges
  unit/limits/test_store_twins.py test_redis_says_what_memory_says
BL-069
  unit/upstreams/test_arguments.py test_references_are_never_fetched
BL-070
  flow/test_paired.py test_another_caller_with_the_id_gets_nothing_and_does_nothing
  flow/test_paired.py test_a_message_names_one_session_of_a_stream
BL-071
  a2a/test_whose_task.py test_to_everybody_but_its_owner_a_task_is_missing_in_every_state
  flow/test_cli_agents.py test_another_ones_task_is_as_none_while_it_runs_and_when_it_is_over
BL-074
  flow/test_stdio.py test_everything_that_a_program_started_ends_with_it
  unit/tasks/programs/test_one_shot.py test_a_listener_who_leaves_ends_it_with_everything_that_it_started
  unit/tasks/programs/test_supervised_process.py test_a_grandchild_that_ignores_being_asked_is_gone_in_time
BL-075
  unit/audit/test_record.py test_hostile_text_in_every_field_stays_one_bounded_line
  unit/audit/test_record.py test_what_fits_and_can_be_encoded_is_parsed_back_as_it_was
BL-076
  flow/test_hostile_callers.py test_a_malformed_body_is_an_error_one_record_and_nothing_else
  flow/test_hostile_callers.py test_a_body_one_byte_too_long_is_not_decided_on_in_part
  unit/protocols/test_jsonrpc.py test_a_body_of_the_corpus_meets_its_verdict
  unit/protocols/test_jsonrpc.py test_a_key_twice_is_refused_at_every_depth
  unit/gateway/test_routing.py test_a_body_is_taken_up_to_its_bound_and_never_in_part
BL-078
  flow/test_breaker.py test_a_slow_server_is_not_ill_and_a_fast_one_neither
  flow/test_breaker.py test_an_upstream_that_is_back_is_found_without_a_call
BL-080
  flow/test_stdio.py test_a_program_gets_what_it_is_given_and_nothing_else
  unit/tasks/programs/test_one_shot.py test_it_gets_what_it_is_given_and_nothing_else
BL-081
  flow/test_large_policy.py test_no_call_fails_and_no_decision_mixes_two_revisions
  flow/test_admin.py test_in_a_storm_of_reloads_every_decision_is_the_old_or_the_new_one_and_none_a_mixture
  flow/test_kill.py test_reloads_under_load_fail_nobody
BL-086
  flow/test_stdio.py test_a_program_that_dies_fails_its_call_at_once_and_the_next_one_finds_another
  flow/test_breaker.py test_an_open_breaker_lets_nothing_through_and_charges_nobody
  flow/test_breaker.py test_a_session_that_the_server_forgot_is_begun_anew_by_the_probe
  flow/test_upstream_trouble.py test_a_restarted_upstream_is_called_again_at_once
BL-087
  unit/policy/test_own_models.py test_a_role_in_one_tenant_is_none_in_another
  unit/policy/test_roles.py test_another_callers_roles_change_nothing
BL-088
  unit/protocols/a2a/test_cards.py test_a_card_of_ours_is_the_golden_one
  unit/protocols/a2a/test_cards.py test_no_address_in_it_is_the_agents
  a2a/test_cards.py test_every_address_is_ours_and_no_other_is_left
  peers/test_a2a_clients.py test_every_front_leads_to_every_agent
BL-090
  flow/test_hostile_upstream.py test_a_list_on_every_stream_of_a_2024_server_is_its_readers_and_filtered
  flow/test_paired.py test_lists_are_those_of_streamable_http
  flow/test_paired.py test_a_list_in_a_stream_or_on_another_stream_is_filtered_too
BL-091
  flow/test_streams.py test_a_stream_ends_with_its_permission_and_others_go_on
BL-093
  flow/test_stdio.py test_what_a_caller_says_reaches_a_program_as_it_is_and_never_its_command_line
  unit/tasks/programs/test_one_shot.py test_the_agent_receives_exactly_the_text
  unit/tasks/programs/test_prompts.py test_what_cannot_be_an_argument_is_refused_before_anything_starts
  unit/tasks/programs/test_prompts.py test_a_prompt_that_looks_like_an_option_is_told_only_behind_the_last_of_them
BL-095
  unit/limits/test_redis_store.py test_callers_who_vanish_at_any_moment_leave_exact_counters_and_no_foreign_replies
  unit/limits/test_redis_store.py test_a_reply_is_believed_only_if_it_names_our_call_and_counts_in_whole_numbers
BL-097
  flow/test_sessions.py test_a_refreshed_token_goes_on_and_another_subject_does_not
BL-099
  unit/policy/test_engine.py test_a_decision_looks_at_its_own_rows_only
BL-100
  flow/test_stdio.py test_a_thousand_calls_are_one_program
  flow/test_agent_laboratory.py test_programs_that_are_called_over_and_over_leave_nothing
BL-101
  flow/test_federation.py test_a_server_added_at_run_time_is_there_at_once
  flow/test_session_ends.py test_the_sidecar_goes_on_without_the_clients_initialized_and_the_upstream_may_insist
  flow/test_session_ends.py test_a_session_goes_on_when_a_second_server_is_added
BL-102
  unit/policy/test_golden.py test_the_shipped_policy_decides_as_pinned
"""

# What of a report is not shown above, because what it is about does not exist here yet.
IN_PART: dict[str, str] = {}


def answers() -> Iterator[tuple[str, str, str]]:
    """Report, file under tests/, name of the test."""
    report = ""
    for line in REPORTS.split("\n"):
        if line.startswith(" "):
            file, test = line.split()
            yield report, file, test
        else:
            report = line


@cache
def sources_in(file: str) -> dict[str, str]:
    """The source of each test of a file, what decorates it included."""
    text = (TESTS / file).read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


@pytest.mark.parametrize(("report", "file", "test"), [*answers()], ids=lambda part: part)
def test_a_report_is_answered_by_a_test_that_names_it(report: str, file: str, test: str) -> None:
    assert test in sources_in(file), f"{file} has no such test; was it renamed?"
    assert report in sources_in(file)[test]


def test_no_report_stands_without_an_answer() -> None:
    named = [line for line in REPORTS.split() if line.startswith("BL-")]
    assert sorted(set(named)) == named
    assert {report for report, _, _ in answers()} == set(named) >= {*IN_PART}
