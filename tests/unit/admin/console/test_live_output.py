"""The output of a run as a page of the console gets it, event by event."""

from sidecar.admin.console.pages.runs import MAX_OUTPUT_CHARS, LiveOutput
from sidecar.admin.run_stream import OUTPUT, STATUS, RunNews


def said(text: str, artifact: str = "output", *, anew: bool = False) -> RunNews:
    return RunNews(OUTPUT, {"artifact": artifact, "text": text} | ({"anew": True} if anew else {}))


def test_a_page_gets_all_of_it_first_and_then_what_is_added() -> None:
    shown = LiveOutput()
    assert shown.event() is None
    shown.add(said("one\n"))
    shown.add(said("two\n", "output-2"))
    first = shown.event()
    assert first is not None and (first.event, first.data) == ("whole", {"text": "one\ntwo\n", "is_cut": False})
    assert shown.event() is None
    shown.add(said("three\n", "output-2"))
    shown.add(said("four\n", "output-2"))
    more = shown.event()
    assert more is not None and (more.event, more.data) == ("output", {"text": "three\nfour\n"})


def test_what_replaces_an_artifact_is_sent_with_all_others() -> None:
    shown = LiveOutput()
    shown.add(said("one\n"))
    shown.add(said("draft\n", "output-2"))
    shown.event()
    shown.add(said("final\n", "output-2", anew=True))
    anew = shown.event()
    assert anew is not None and (anew.event, anew.data) == ("whole", {"text": "one\nfinal\n", "is_cut": False})
    shown.add(said("", "output-2", anew=True))
    gone = shown.event()
    assert gone is not None and (gone.event, gone.data["text"]) == ("whole", "one\n")


def test_of_more_than_a_page_shows_it_gets_the_end() -> None:
    shown, line = LiveOutput(), "x" * 1023 + "\n"
    for number in range(MAX_OUTPUT_CHARS // len(line)):
        shown.add(said(line))
        if number == 0:
            shown.event()
    assert (event := shown.event()) is not None and event.event == "output"
    shown.add(said("the end\n"))
    cut = shown.event()
    assert cut is not None and cut.event == "whole" and cut.data["is_cut"]
    assert len(cut.data["text"]) == MAX_OUTPUT_CHARS and cut.data["text"].endswith("x\nthe end\n")
    shown.add(said(line * 100))
    flood = shown.event()
    assert flood is not None and flood.event == "whole" and len(flood.data["text"]) == MAX_OUTPUT_CHARS


def test_progress_is_that_of_the_last_status() -> None:
    shown = LiveOutput()
    shown.add(RunNews(STATUS, {"state": "TASK_STATE_WORKING", "progress": 1, "total": 3}))
    assert shown.progress == {"progress": 1, "total": 3} and shown.event() is None
    shown.add(RunNews(STATUS, {"state": "TASK_STATE_WORKING"}))
    assert shown.progress == {"progress": None, "total": None}
