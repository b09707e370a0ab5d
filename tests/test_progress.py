"""The progress file: what it keeps, how it survives damage, and that nothing about it ever blocks a cell."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import progress as module
from labs.progress import FILE_NAME, LEARNT, Progress

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def file(tmp_path):
    return tmp_path / FILE_NAME


def fill(progress):
    """Something of everything."""
    progress.record_attempt("static_steps", "one_group")
    progress.record_attempt("static_steps")
    progress.record_pass("static_steps")
    progress.record_attempt("next_slot", "step")
    progress.predict("waste", 60)
    progress.record_reply("drain", False)
    progress.record_reply("load", True)
    return progress


def is_a_sentence(note):
    return bool(re.fullmatch(r"[A-Z.][^\n]*\.", note)) and len(note) < 250


# ---------------------------------------------------------------- what it keeps


@pytest.mark.parametrize("where", ["memory", "file", "file read again"])
def test_everything_is_kept(where, file):
    progress = fill(Progress(None if where == "memory" else file))
    if where == "file read again":
        progress = Progress(file)
    assert progress.passed("static_steps")
    assert not progress.passed("next_slot")
    assert (progress.attempts("static_steps"), progress.attempts("static_steps", "one_group")) == (2, 1)
    assert progress.prediction("waste") == 60
    assert progress.prediction("gain") is None
    assert (progress.replies("drain"), progress.replies("load"), progress.replies("paging")) == ((0, 1), (1, 0), (0, 0))
    summary = progress.summary()
    assert summary.passed == ("static_steps",)
    assert summary.attempts == {"static_steps": 2, "next_slot": 1}
    assert summary.predictions == {"waste": 60}
    assert (summary.correct, summary.missed) == (("load",), ("drain",))
    assert str(summary) == "1 exercise passed, 1 tried; 1 prediction; 1 question right, 1 to come back to"
    assert progress.note == ""


def test_a_file_that_an_editor_gave_a_byte_order_mark_is_read(file):
    fill(Progress(file))
    before = Progress(file).summary()
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    again = Progress(file)
    assert (again.summary(), again.note) == (before, "")


def test_attempts_are_counted_in_all_and_by_mistake():
    progress = Progress(None)
    assert [progress.record_attempt("gain", m) for m in ("law", "", "law", "inverted", "")] == [1, 2, 2, 1, 5]


def test_a_pass_stays_and_is_kept_once(file):
    progress = Progress(file)
    for _ in range(3):
        progress.record_pass("gain")
    progress.record_attempt("gain")
    assert progress.summary().passed == ("gain",)


def test_a_later_prediction_takes_the_earliers_place():
    progress = Progress(None)
    progress.predict("gain", 2)
    progress.predict("gain", 4.5)
    assert progress.prediction("gain") == 4.5


@pytest.mark.parametrize("value", ["many", None, [1], float("nan"), float("inf")])
def test_a_prediction_must_be_a_number(value):
    progress = Progress(None)
    with pytest.raises(ValueError, match="a prediction must be a"):
        progress.predict("gain", value)
    assert progress.prediction("gain") is None


# ---------------------------------------------------------------- questions come back


def test_missed_questions_come_back_first_then_new_ones_then_those_to_repeat():
    progress = Progress(None)
    names = list("abcdef")
    assert progress.due(names) == names
    progress.record_reply("a", False)
    progress.record_reply("b", True)
    assert progress.due(names) == list("cdefa")  # too soon: the missed one comes after the new ones
    progress.record_reply("c", True)
    assert progress.due(names) == list("adef")  # the missed one is back, ahead of the new ones
    progress.record_reply("a", True)
    assert progress.due(names) == list("def")


def test_among_those_to_repeat_the_ones_once_missed_come_first():
    progress = Progress(None)
    for name, passed in (("a", True), ("b", False), ("b", True), ("c", True)):
        progress.record_reply(name, passed)
    for i in range(40):
        progress.record_reply(str(i), True)
    assert progress.due("abc") == ["b", "a", "c"]


def test_a_question_answered_right_often_enough_is_not_asked_again():
    progress, asked = Progress(None), 0
    while progress.due(["a"]) or asked < 200:
        if progress.due(["a"]):
            progress.record_reply("a", True)
        else:
            progress.record_reply(f"other {asked}", True)
        asked += 1
        assert asked < 400
    assert progress.replies("a") == (LEARNT, 0)


def test_a_miss_starts_the_count_again():
    progress = Progress(None)
    for passed in (True, True, False):
        progress.record_reply("a", passed)
    assert progress.summary().missed == ("a",)
    for i in range(5):
        progress.record_reply(str(i), True)
    assert progress.due(["a"]) == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_due_never_repeats_or_invents_a_question(replies):
    progress = Progress(None)
    for name, passed in replies:
        progress.record_reply(name, passed)
    due = progress.due("abcd")
    assert len(set(due)) == len(due)
    assert set(due) <= set("abcd")
    assert set("abcd") - {name for name, _ in replies} <= set(due)
    last = dict(replies)
    assert {name for name, passed in last.items() if not passed} <= set(due), "whatever was missed is asked again"


# ---------------------------------------------------------------- where it is


def test_it_lies_beside_the_notebook_unless_told_otherwise(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {}
    for value in (None, "", "off", "OFF", str(tmp_path / "mine.json"), str(tmp_path / "elsewhere"), "~/home.json"):
        if value is None:
            monkeypatch.delenv("LABS_PROGRESS", raising=False)
        else:
            monkeypatch.setenv("LABS_PROGRESS", value)
        found[value] = Progress.beside_notebook().path
    beside = tmp_path / "notebooks" / FILE_NAME
    assert list(found.values()) == [beside, beside, None, None, tmp_path / "mine.json",
                                    tmp_path / "elsewhere" / FILE_NAME, tmp_path / "home.json"]
    assert list(tmp_path.rglob("*.json*")) == []  # nothing is written before there is something to keep


def test_a_working_directory_that_is_gone_is_no_obstacle(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.delenv("LABS_PROGRESS")
    gone.rmdir()
    progress = fill(Progress.beside_notebook())
    assert progress.passed("static_steps")
    assert is_a_sentence(progress.note)


# ---------------------------------------------------------------- damage


GOOD = json.dumps({"course": "continuous-batching", "version": 1, **module._empty()})
BROKEN = {
    "empty": b"", "half": GOOD[: len(GOOD) // 2].encode(), "no JSON": b"hello", "no UTF-8": b"\xff\xfe\x00",
    "a list": b"[]", "a number": b"1", "another's": b'{"name": "package", "version": 1}',
    "of no version": GOOD.replace('"version": 1', '"version": "one"').encode(),
    "passed is text": GOOD.replace('"passed": []', '"passed": "gain"').encode(),
    "passed holds numbers": GOOD.replace('"passed": []', '"passed": [1]').encode(),
    "attempts are text": GOOD.replace('"attempts": {}', '"attempts": {"gain": "two"}').encode(),
    "attempts are negative": GOOD.replace('"attempts": {}', '"attempts": {"gain": -2}').encode(),
    "attempts are true": GOOD.replace('"attempts": {}', '"attempts": {"gain": true}').encode(),
    "a prediction is NaN": GOOD.replace('"predictions": {}', '"predictions": {"gain": NaN}').encode(),
    "predictions are a list": GOOD.replace('"predictions": {}', '"predictions": []').encode(),
    "a reply lacks its due": GOOD.replace('"quiz": {}', '"quiz": {"a": {"correct": 1, "streak": 1}}').encode(),
    "quiz is a list": GOOD.replace('"quiz": {}', '"quiz": []').encode(),
    "turn is missing": GOOD.replace(', "turn": 0', "").encode(),
    "too deep": b"[" * 100_000,
    "a huge number": b"1" * 5000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_a_file_that_makes_no_sense_is_set_aside_and_kept(content, file):
    file.write_bytes(content)
    progress = Progress(file)
    assert is_a_sentence(progress.note)
    assert progress.summary().passed == ()
    fill(progress)
    assert Progress(file).passed("static_steps")
    aside = file.with_name(f"{FILE_NAME}.broken-1")
    assert aside.name in progress.note
    assert aside.read_bytes() == content


DAMAGES = {
    "passed": lambda data: data["passed"].append(7), "attempts": lambda data: data["attempts"].update(gain="two"),
    "predictions": lambda data: data["predictions"].update(late=None),
    "quiz": lambda data: data["quiz"].update(odd={"correct": 1}), "turn": lambda data: data.update(turn=-1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_one_bad_entry_costs_no_other(damage, file):
    whole = fill(Progress(file))
    data = json.loads(file.read_text())
    damage(data)
    file.write_text(json.dumps(data))
    progress = Progress(file)
    assert progress.summary() == whole.summary()
    assert progress.note == (f"Part of {FILE_NAME} could not be understood: the file is now {FILE_NAME}.broken-1, and "
                             f"the rest of your progress is kept.")
    assert json.loads(file.with_name(f"{FILE_NAME}.broken-1").read_text()) == data
    again = Progress(file)
    assert (again.note, again.summary()) == ("", whole.summary())


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_one_bad_entry_costs_no_other_where_nothing_can_be_renamed(damage, file, monkeypatch):
    whole = fill(Progress(file))
    data = json.loads(file.read_text())
    damage(data)
    file.write_text(json.dumps(data))
    monkeypatch.setattr(Path, "rename", fails(errno.EACCES))
    progress = fill(Progress(file))
    assert set(progress.summary().passed) == set(whole.summary().passed)
    assert is_a_sentence(progress.note)
    assert json.loads(file.read_text()) == data


@pytest.mark.parametrize("later", [2, 99])
def test_a_file_of_a_later_version_is_left_alone_and_named(later, file):
    content = GOOD.replace('"version": 1', f'"version": {later}')
    file.write_text(content)
    progress = fill(Progress(file))
    assert progress.note == (f"Your progress is kept only until the kernel stops: {FILE_NAME} was written by a newer "
                             f"version of the course, so fetch that.")
    assert progress.passed("static_steps")
    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]
    assert file.read_text() == content


def test_each_broken_file_gets_a_name_of_its_own(file):
    for n in range(3):
        file.write_text(f"broken {n}")
        Progress(file)
    names = [f"{FILE_NAME}.broken-{n}" for n in (1, 2, 3)]
    assert [file.with_name(name).read_text() for name in names] == ["broken 0", "broken 1", "broken 2"]


@given(st.binary(max_size=60))
def test_any_bytes_at_all(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("any") / FILE_NAME
    file.write_bytes(content)
    assert fill(Progress(file)).passed("static_steps")


def test_damage_while_in_use_is_set_aside_too(file):
    progress = fill(Progress(file))
    file.write_text("damaged")
    progress.record_pass("gain")
    assert progress.passed("gain")
    assert progress.passed("static_steps")  # what was in memory is written again
    assert Progress(file).summary() == progress.summary()
    assert file.with_name(f"{FILE_NAME}.broken-1").read_text() == "damaged"


def test_a_file_deleted_while_in_use_is_written_again(file):
    progress = fill(Progress(file))
    file.unlink()
    progress.record_pass("gain")
    assert Progress(file).summary().passed == ("static_steps", "gain")


# ---------------------------------------------------------------- what can't be read or written


def fails(code):
    def failing(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return failing


@pytest.mark.parametrize(("target", "code"), [
    ("os.replace", errno.ENOSPC), ("os.replace", errno.EACCES), ("tempfile.mkstemp", errno.EROFS),
    ("tempfile.mkstemp", errno.ENOSPC), ("os.fdopen", errno.EIO),
])
def test_what_cant_be_written_stays_in_memory_until_it_can(target, code, file, monkeypatch):
    before = fill(Progress(file)).summary()
    progress = Progress(file)
    with monkeypatch.context() as broken:
        broken.setattr(target, fails(code))
        progress.record_pass("gain")
        progress.record_pass("fit_lognormal")
        assert progress.passed("gain")
        assert progress.passed("fit_lognormal")
        assert is_a_sentence(progress.note)
        assert "can't be written" in progress.note
        assert Progress(file).summary() == before  # what was there is whole
    progress.record_pass("next_slot")
    assert Progress(file).summary().passed == ("static_steps", "gain", "fit_lognormal", "next_slot")
    assert progress.note == ""
    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]  # no half-written file is left


def test_a_disk_that_fills_up_in_the_middle_leaves_the_old_file(file, monkeypatch):
    before = fill(Progress(file)).summary()
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    progress = Progress(file)
    real = os.fdopen

    def onto_a_full_disk(handle, *args, **kwargs):
        os.close(handle)
        return real(os.open(full, os.O_WRONLY), *args, **kwargs)

    with monkeypatch.context() as broken:
        broken.setattr("os.fdopen", onto_a_full_disk)
        progress.record_pass("gain")
    assert "No space left" in progress.note
    assert Progress(file).summary() == before


def test_a_read_only_file_is_left_alone(file, monkeypatch):
    fill(Progress(file))
    monkeypatch.setattr("os.access", lambda path, mode: False)  # as for anyone but root
    before = file.read_bytes()
    progress = Progress(file)
    progress.record_pass("gain")
    assert progress.passed("gain")
    assert file.read_bytes() == before
    assert is_a_sentence(progress.note)
    assert "read-only" in progress.note


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_file_that_cant_be_read_is_never_written(code, file, monkeypatch):
    fill(Progress(file))
    before = file.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_text", fails(code))
        progress = fill(Progress(file))
    progress.record_pass("gain")
    assert progress.passed("gain")
    assert is_a_sentence(progress.note)
    assert file.read_bytes() == before


def test_a_folder_in_its_place_is_no_obstacle(file):
    file.mkdir()
    progress = fill(Progress(file))
    assert progress.passed("static_steps")
    assert is_a_sentence(progress.note)
    assert file.is_dir()


def test_a_missing_folder_is_no_obstacle(tmp_path):
    progress = fill(Progress(tmp_path / "none" / FILE_NAME))
    assert progress.passed("static_steps")
    assert is_a_sentence(progress.note)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_impossible_name_is_no_obstacle(path):
    progress = fill(Progress(path))
    assert progress.passed("static_steps")
    assert progress.note.startswith("Your progress is kept only until the kernel stops: ")


def test_an_impossible_name_in_the_environment_is_no_obstacle(monkeypatch):
    monkeypatch.setenv("LABS_PROGRESS", "x" * 5000)
    assert fill(Progress.beside_notebook()).passed("static_steps")


def test_a_broken_file_that_cant_be_renamed_is_left_alone(file, monkeypatch):
    file.write_text("broken")
    monkeypatch.setattr(Path, "rename", fails(errno.EACCES))
    progress = fill(Progress(file))
    assert progress.passed("static_steps")
    assert is_a_sentence(progress.note)
    assert file.read_text() == "broken"


# ---------------------------------------------------------------- two notebooks at once


def test_two_notebooks_share_a_file(file):
    one, other = Progress(file), Progress(file)
    one.record_pass("gain")
    other.record_pass("next_slot")
    one.predict("waste", 70)
    other.record_attempt("static_steps")
    final = Progress(file).summary()
    assert final.passed == ("gain", "next_slot")
    assert final.predictions == {"waste": 70}
    assert final.attempts == {"static_steps": 1}


def test_a_reader_never_sees_half_a_file(file):
    """Two processes write as fast as they can; whatever is there at any moment can be read."""
    code = ("import sys; from labs.progress import Progress\n"
            "p = Progress(sys.argv[1])\n"
            "for i in range(150): p.record_attempt(f'{sys.argv[2]}{i}')")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), name], env=env) for name in "ab"]
    try:
        while any(writer.poll() is None for writer in writers):
            if file.exists():
                module._parse(file.read_text(encoding="utf-8"))
    finally:
        for writer in writers:
            writer.wait(timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]


@pytest.mark.skipif(module.fcntl is None, reason="this system has no lock on a folder")
def test_two_processes_that_write_at_once_lose_nothing(file):
    code = ("import sys; from labs.progress import Progress\n"
            "p = Progress(sys.argv[1])\n"
            "for i in range(100): p.record_attempt(sys.argv[2])\n"
            "p.predict(sys.argv[2], 1)")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), name], env=env) for name in "abc"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    found = Progress(file).summary()
    assert found.attempts == {"a": 100, "b": 100, "c": 100}
    assert found.predictions == {"a": 1, "b": 1, "c": 1}


def test_a_lock_that_somebody_keeps_holds_nobody_up_for_long(file):
    if module.fcntl is None:
        pytest.skip("this system has no lock on a folder")
    folder = os.open(file.parent, os.O_RDONLY)
    module.fcntl.flock(folder, module.fcntl.LOCK_EX)
    try:
        assert fill(Progress(file)).passed("static_steps")
    finally:
        os.close(folder)


def test_a_prediction_of_hundreds_of_digits_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    kept = Progress(path)
    kept.predict("a", 1)
    path.write_text(path.read_text().replace("1.0", "1" + "0" * 400))
    assert Progress(path).prediction("a") is None
