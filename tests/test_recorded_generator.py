"""Recorded replies: by order, by prompt, by call; and recording them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evo_l2.contracts import Message, ModelCall, Reply
from evo_l2.errors import ConfigurationError, ModelError, StorageError
from mutators.generators.estimate import estimate_tokens
from mutators.generators.recorded import RecordedGenerator, RecordingGenerator, prompt_digest

SYSTEM = Message("system", "Be brief.")


def prompt(text: str) -> tuple[Message, ...]:
    """A prompt as operators write it."""
    return (SYSTEM, Message("user", text))


def reply(text: str, error: str | None = None) -> Reply:
    """A reply with all its numbers."""
    return Reply(text, 11, 7, 0.25, 0.001, 1, error)


def call(text: str, answer: str, seed: int, generator: str = "model", max_tokens: int = 64) -> ModelCall:
    """A stored call."""
    return ModelCall(generator, prompt(text), reply(answer), seed, max_tokens)


def lines(path: Path, *rows: object) -> Path:
    """A file of replies."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def test_by_order_the_nth_prompt_gets_the_nth_reply(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", {"reply": {"text": "one"}}, "", {"reply": {"text": "", "error": "down"}})
    with RecordedGenerator.from_file(path) as generator:
        first, second = generator.generate([prompt("a"), prompt("b")], [1, 2], max_tokens=5)
        assert (first.text, first.error, second.error) == ("one", None, "down")
        assert first.n_prompt_tokens == estimate_tokens("Be brief.") + estimate_tokens("a")
        assert first.n_reply_tokens == estimate_tokens("one")
        assert second.n_reply_tokens == 0
        assert generator.name == "recorded"
        with pytest.raises(ModelError, match="used up: expected 2 calls, found call 3"):
            generator.generate([prompt("c")], [3], max_tokens=5)


def test_by_prompt_order_and_seed_do_not_count(tmp_path: Path) -> None:
    rows = [{"digest": prompt_digest(prompt(name)), "reply": {"text": f"to {name}"}} for name in "ab"]
    generator = RecordedGenerator.from_file(lines(tmp_path / "r.jsonl", *rows), by="prompt")
    given = generator.generate([prompt("b"), prompt("a"), prompt("b")], [9, 8, 7], max_tokens=5)
    assert [r.text for r in given] == ["to b", "to a", "to b"]
    with pytest.raises(ModelError, match="expected a call that was recorded"):
        generator.generate([prompt("c")], [1], max_tokens=5)


def test_a_stored_run_is_replayed_whatever_the_order() -> None:
    calls = [call("a", "x", 1), call("a", "y", 2), call("b", "z", 1)]
    generator = RecordedGenerator.from_calls(iter(calls))
    assert generator.name == "model"
    given = generator.generate([prompt("b"), prompt("a"), prompt("a")], [1, 2, 1], max_tokens=64)
    assert given == (reply("z"), reply("y"), reply("x"))


def test_a_call_made_twice_gives_its_replies_in_turn() -> None:
    generator = RecordedGenerator.from_calls([call("a", "x", 1), call("a", "y", 1)])
    texts = [generator.generate([prompt("a")], [1], max_tokens=64)[0].text for _ in range(3)]
    assert texts == ["x", "y", "y"]


def test_a_prompt_that_diverges_names_the_first_difference() -> None:
    generator = RecordedGenerator.from_calls([call("one\ntwo\nthree", "x", 1)])
    with pytest.raises(ModelError) as caught:
        generator.generate([prompt("one\n2\n3")], [1], max_tokens=64)
    assert caught.value.expected == "in line 2 of the prompt's user message 'two'"
    assert caught.value.found == "'2'"
    with pytest.raises(ModelError) as caught:
        generator.generate([prompt("one\ntwo")], [1], max_tokens=64)
    assert caught.value.expected == "in line 3 of the prompt's user message 'three'"
    assert caught.value.found == "no such line"
    with pytest.raises(ModelError, match="expected 2 messages in the prompt, found 1"):
        generator.generate([(SYSTEM,)], [1], max_tokens=64)


def test_a_call_that_was_never_made_is_an_error() -> None:
    generator = RecordedGenerator.from_calls([call("a", "x", 1)])
    with pytest.raises(ModelError, match="found seed 2"):
        generator.generate([prompt("a")], [2], max_tokens=64)
    with pytest.raises(ModelError, match="expected max_tokens=64, found 65"):
        generator.generate([prompt("a")], [1], max_tokens=65)
    with pytest.raises(ModelError):
        RecordedGenerator.from_calls([]).generate([prompt("a")], [1], max_tokens=64)


def test_calls_of_several_generators_are_replayed_one_at_a_time() -> None:
    calls = [call("a", "x", 1, "first"), call("a", "y", 1, "second")]
    with pytest.raises(ConfigurationError, match="found first, second"):
        RecordedGenerator.from_calls(calls)
    second = RecordedGenerator.from_calls(calls, generator="second")
    assert second.name == "second"
    assert second.generate([prompt("a")], [1], max_tokens=64)[0].text == "y"


def test_what_was_recorded_is_replayed_to_the_last_number(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    inner = RecordedGenerator.from_calls(
        [call("a", "x \u00e9\ud800", 1), call("b", "", 2)], count_tokens=lambda text: 1000 + len(text)
    )
    with RecordingGenerator(inner, path) as recording:
        assert recording.count_tokens("abc") == 1003
        recorded = recording.generate([prompt("a"), prompt("b")], [1, 2], max_tokens=64)
        assert recording.name == "model"
    replay = RecordedGenerator.from_file(path, by="call")
    assert replay.name == "model"
    assert replay.generate([prompt("a"), prompt("b")], [1, 2], max_tokens=64) == recorded
    assert replay.count_tokens("abc") == 1003
    assert replay.count_tokens("never counted") == estimate_tokens("never counted")


def test_half_a_line_at_the_end_is_dropped_when_recording_goes_on(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", {"reply": {"text": "whole"}})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"reply": {"te')
    assert RecordedGenerator.from_file(path).generate([prompt("a")], [1], max_tokens=5)[0].text == "whole"
    recording = RecordingGenerator(RecordedGenerator.from_calls([call("a", "next", 1)]), path)
    recording.generate([prompt("a")], [1], max_tokens=64)
    both = RecordedGenerator.from_file(path).generate([prompt("a"), prompt("a")], [1, 2], max_tokens=64)
    assert [r.text for r in both] == ["whole", "next"]


@pytest.mark.parametrize(
    "row",
    ["no json", "[1]", "7", {"text": "x"}, {"reply": {}}, {"reply": {"text": 3}}, {"reply": {"text": "x"}, "prompt": 1}],
)
def test_a_line_that_is_no_reply_is_named(tmp_path: Path, row: object) -> None:
    path = lines(tmp_path / "r.jsonl", {"reply": {"text": "x"}}, row)
    with pytest.raises(ConfigurationError, match="line 2 of the recorded replies"):
        RecordedGenerator.from_file(path)


def test_a_line_without_its_key_is_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", {"reply": {"text": "x"}})
    with pytest.raises(ConfigurationError, match="line 1"):
        RecordedGenerator.from_file(path, by="prompt")
    lines(path, {"reply": {"text": "x"}, "digest": "abc"})
    with pytest.raises(ConfigurationError, match='"seed"'):
        RecordedGenerator.from_file(path, by="call")


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        RecordedGenerator.from_file(tmp_path / "none.jsonl")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="expected a text file"):
        RecordedGenerator.from_file(tmp_path / "bytes")
    with pytest.raises(StorageError, match="cannot be recorded"):
        RecordingGenerator(RecordedGenerator.from_calls([]), tmp_path / "no" / "folder.jsonl")


@pytest.mark.parametrize("text", ["", "a", "for (int i = 0; i < n; i++) {\n", "\u00fc" * 9, "\ud800"])
def test_the_estimate_is_a_token_for_every_two_bytes(text: str) -> None:
    n_bytes = len(text.encode("utf-8", "surrogatepass"))
    assert n_bytes / 2 <= estimate_tokens(text) <= n_bytes / 2 + 0.5


def test_by_order_a_run_that_goes_on_gets_what_it_was_not_told_of(tmp_path: Path) -> None:
    texts = ["same", "b", "same", "d", "e"]
    path = lines(tmp_path / "r.jsonl", *({"reply": {"text": text}} for text in texts))
    first = RecordedGenerator.from_file(path)
    given = first.generate([prompt(text) for text in texts[:4]], [1, 2, 3, 4], max_tokens=5)
    made = [ModelCall("recorded", prompt("?"), reply, 1, 5) for reply in given]
    # Two calls were in flight when the run was cut: one before and one after what was told.
    again = RecordedGenerator.from_file(path)
    again.skip([made[0], made[3]])
    assert [again.generate([prompt("?")], [1], max_tokens=5)[0].text for _ in range(3)] == ["b", "same", "e"]
    with pytest.raises(ModelError, match="used up: expected 5 calls, found call 6"):
        again.generate([prompt("?")], [1], max_tokens=5)


def test_outages_are_passed_over_as_outages_and_foreign_calls_not_at_all(tmp_path: Path) -> None:
    rows = [{"reply": {"text": "", "error": "down"}}, {"reply": {"text": ""}}, {"reply": {"text": "x"}}]
    generator = RecordedGenerator.from_file(lines(tmp_path / "r.jsonl", *rows))
    generator.skip([ModelCall("m", prompt("?"), Reply("", 1, 0, 0.0), 1, 5), call("?", "another file's", 1)])
    given = generator.generate([prompt("?")] * 2, [1, 2], max_tokens=5)
    assert [(reply.text, reply.error) for reply in given] == [("", "down"), ("x", None)]


def test_by_call_a_run_that_goes_on_gets_the_next_reply_to_the_same_call() -> None:
    generator = RecordedGenerator.from_calls([call("a", "x", 1), call("a", "y", 1), call("b", "z", 1)])
    generator.skip([call("a", "x", 1), call("b", "z", 1), call("never", "w", 1)])
    given = generator.generate([prompt("a"), prompt("b")], [1, 1], max_tokens=64)
    assert [reply.text for reply in given] == ["y", "z"]
