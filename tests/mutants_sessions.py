"""Bugs planted in sessions of agents, and the test that notices each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.mutants_source import SourceMutant
from tests.planning import test_agents as agents
from tests.serving import test_agent_traces as traces
from tests.serving import test_sessions as sessions

_SENDERS = "inferplan.serving.session_senders:SessionSenders"
_CLUSTER = "inferplan.serving.session_cluster:SessionCluster"
_RESULTS = "inferplan.serving.session_results"
_TRAFFIC = "inferplan.traffic.sessions"
_PLANNING = "inferplan.planning.agents"
_TRACES = "inferplan.traffic.agent_traces"


def in_a_folder(check: Callable[[Path], None]) -> Callable[[], None]:
    """A check with an empty folder of its own."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    return run


SESSION_MUTANTS = [
    SourceMutant(
        name="a join is the last answer to be told, not the latest",
        place=f"{_SENDERS}.answered",
        old="max(self.ready[after], time)",
        new="min(self.ready[after] or time, time)",
        changes="the call after sub-agents is sent when the first of them is done",
        check=sessions.test_two_turns_and_two_subagents_by_hand,
    ),
    SourceMutant(
        name="a join waits for one of several",
        place=f"{_SENDERS}._wait",
        old="self.missing[call] += 1",
        new="self.missing[call] = 1",
        changes="the call after sub-agents waits for none of them",
        check=sessions.test_a_session_alone_takes_its_calls_and_gaps_and_a_join_the_longest_branch,
    ),
    SourceMutant(
        name="gaps are left out",
        place=f"{_SENDERS}._due",
        old="self.ready[call] + self.think(call)",
        new="self.ready[call]",
        changes="tools and users take no time",
        check=sessions.test_two_turns_and_two_subagents_by_hand,
    ),
    SourceMutant(
        name="a session that was given up goes on",
        place=f"{_SENDERS}.sends",
        old="if session in self.records.left:",
        new="if False:",
        changes="calls are sent after their user has left",
        check=sessions.test_sessions_that_are_given_up_send_nothing_later_and_leave_nothing_behind,
    ),
    SourceMutant(
        name="an aborted call keeps its cache",
        place="inferplan.serving.aborts:abort",
        old="        admitted.release(request, tokens)",
        new="        admitted.running.pop(request)",
        changes="what waits for room does not get that of a call that was aborted",
        check=sessions.test_a_user_who_gives_up_frees_the_cache,
    ),
    SourceMutant(
        name="answers that nobody waited for count",
        place=f"{_CLUSTER}._give_up",
        old="records.finish[call] > time",
        new="records.finish[call] > 1e30",
        changes="an answer after its user has left counts as read",
        check=sessions.test_sessions_that_are_given_up_send_nothing_later_and_leave_nothing_behind,
    ),
    SourceMutant(
        name="parallel calls count twice",
        place=f"{_RESULTS}:_covered",
        old="last - max(first, reached[group])",
        new="last - first",
        changes="time in the model is the sum over sub-agents that run side by side",
        check=sessions.test_two_turns_and_two_subagents_by_hand,
    ),
    SourceMutant(
        name="sessions given up are forgotten by the limit",
        place=f"{_RESULTS}:SessionFigures.at_percentile",
        old="percentile, lost)",
        new="percentile, 0)",
        changes="users who leave make the percentile of the others better",
        check=sessions.test_the_limit_on_sessions_counts_those_given_up_after_it_as_late,
    ),
    SourceMutant(
        name="reports of sub-agents are not read",
        place=f"{_TRAFFIC}:_drawn",
        old="np.add.at(main.new, resumed, below.output[last])",
        new="pass",
        changes="a prompt does not grow by what sub-agents have found",
        check=sessions.test_a_prompt_grows_by_answers_and_new_text,
    ),
    SourceMutant(
        name="system prompts are of each session",
        place=f"{_TRAFFIC}:_names",
        old="range(head, head - common, -1)",
        new="range(own, own + common)",
        changes="a session does not find the system prompt of another",
        check=sessions.test_what_is_found_in_the_cache_is_what_a_replay_of_the_texts_finds,
    ),
    SourceMutant(
        name="sub-agents stick to nobody",
        place="inferplan.serving.routing:Router._in_turn",
        old="self._conversations[request if sessions is None else int(sessions.of[request])] = replica",
        new="self._conversations[request] = replica",
        changes="the calls of a session go anywhere",
        check=lambda: sessions.test_sticky_routing_keeps_a_session_and_its_subagents_together(sessions.ARRIVALS[0]),
    ),
    SourceMutant(
        name="a call of a trace overtakes its parent",
        place=f"{_SENDERS}._due",
        old="max(due, self.begun[self.session[call]] + self.earliest[call])",
        new="self.begun[self.session[call]] + self.earliest[call]",
        changes="a call is sent before the answer that it goes on from",
        check=in_a_folder(traces.test_bailian_by_hand),
    ),
    SourceMutant(
        name="names of two sessions are mixed",
        place=f"{_TRACES}:weka",
        old='(number + 1) * _NAMES if scope == "local" else 0',
        new="0",
        changes="a session finds the text of another that only has the same numbers",
        check=in_a_folder(
            lambda folder: traces.test_equal_names_of_two_sessions_are_one_text_only_where_the_file_says_so(
                "local", 0, folder
            )
        ),
    ),
    SourceMutant(
        name="times of sub-agents are always the session's",
        place=f"{_TRACES}:_convention",
        old="        return True, f",
        new="        return False, f",
        changes="calls of sub-agents that count from their own begin come at the begin of the session",
        check=in_a_folder(lambda folder: traces.test_weka_by_hand(traces.RELATIVE, "from the sub-agent", folder)),
    ),
    SourceMutant(
        name="a join of a trace waits twice",
        place=f"{_TRACES}:_Weka._call",
        old="if not below and entry.get",
        new="if entry.get",
        changes="a recorded wait for sub-agents is added to the simulated one",
        check=in_a_folder(lambda folder: traces.test_weka_by_hand(traces.ABSOLUTE, "of the session", folder)),
    ),
    SourceMutant(
        name="a cache of first blocks",
        place=f"{_PLANNING}:_lengths",
        old="seen.update(names)",
        new="seen.update(names[:1])",
        changes="the closed form takes prompts as found by their first block alone",
        check=agents.test_what_the_closed_form_is_told_by_hand,
    ),
    SourceMutant(
        name="sub-agents one after another",
        place=f"{_PLANNING}:session_seconds",
        old="ready = max(ready, *(end[other] for other in waits[call]))",
        new="ready += sum(end[other] - ready for other in waits[call])",
        changes="a session takes the sum of its sub-agents and not the longest of them",
        check=agents.test_the_time_of_a_session_by_hand,
    ),
    SourceMutant(
        name="joins of other sessions",
        place=f"{_PLANNING}:every",
        old="place[sessions.joins[np.isin(sessions.joins[:, 0], which)]]",
        new="sessions.joins[: len(which)]",
        changes="calls of a thinned trace wait for those of other sessions",
        check=agents.test_every_second_session_of_a_trace_is_whole,
    ),
    SourceMutant(
        name="users wait longer where devices are slow",
        place=f"{_PLANNING}:in_time_of",
        old="patience=sessions.patience / slower",
        new="patience=sessions.patience",
        changes="in the time of a slow device users are more patient than they are",
        check=agents.test_slow_devices_see_shorter_gaps,
    ),
    SourceMutant(
        name="meters that nothing stops",
        place="inferplan.serving.records:Metering.close",
        old="isnan(self.span[1])",
        new="False",
        changes="rates have no end where calls of sessions are never sent",
        check=partial(sessions.test_rates_count_to_the_last_answer_where_not_all_calls_are_sent, given_up=True),
    ),
]
