"""The fixture model: what it does follows from the message and from the results it reads; tools run for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pod_host.contract.base import JsonObject
from pod_host.contract.model_call import ModelCandidate
from pod_host.dev.models import choose_model
from pod_host.dev.models.fixture import FixtureModel
from pod_host.dev.models.fixture.languages import LANGUAGES, Language, failures_in
from pod_host.dev.models.fixture.programs import PROGRAMS, Program
from tests.dev.models_rig import Chat, Folder, completed, no_files, refused, text


def chat(path: Path, instructions: str = "") -> Chat:
    return Chat(FixtureModel(), Folder(path).tools(), instructions)


def only(*names: str) -> dict[str, str]:
    found = {name: shutil.which(name) for name in names}
    return {name: path for name, path in found.items() if path}


def a_path_with(folder: Path, *names: str) -> Path:
    """A directory that holds links to these programs and nothing else."""
    folder.mkdir()
    for name, path in only(*names).items():
        (folder / name).symlink_to(Path(path).resolve())
    return folder


# --- Building --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["build something", "hello", "Write a word counter", "roman numerals please"])
async def test_work_is_done_tested_mended_and_reported(tmp_path: Path, message: str) -> None:
    talk = chat(tmp_path)
    report = await talk.say(message)
    runs = [args["command"] for args in talk.calls("bash") if "test_" in args["command"]]
    assert len(runs) >= 2, "a first run fails, a later one passes"
    assert len(talk.calls("edit")) == len(runs) - 1
    assert "FAIL" in report
    assert "cases pass" in report
    assert Folder(tmp_path).bash({"command": runs[-1]})["output"]["exitCode"] == 0
    assert "Python 3" in report


WRITTEN = [(program, language) for program in PROGRAMS for language in LANGUAGES if language.key in program.languages]


@pytest.mark.parametrize(("program", "language"), WRITTEN, ids=lambda one: getattr(one, "name", None) or one.key)
def test_every_program_fails_its_test_but_in_its_last_version(
    tmp_path: Path, program: Program, language: Language
) -> None:
    if not shutil.which(language.tool):
        pytest.skip(f"{language.tool} is not installed")
    test = tmp_path / f"test_it{language.suffix}"
    test.write_text(language.test(program, "it"))
    for version in program.versions:
        (tmp_path / f"it{language.suffix}").write_text(language.program(program, version))
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        ran = Folder(tmp_path).bash({"command": f"{language.tool} {test.name}"})["output"]
        failed = failures_in(ran["stdout"])
        assert [failure.given for failure in failed] == [
            given for given, wanted in program.cases if not program.agrees(version, given, wanted)
        ], ran
        assert bool(failed) == (version is not program.versions[-1])
        assert ran["exitCode"] == (1 if failed else 0)


async def test_the_failing_case_decides_the_mend(tmp_path: Path) -> None:
    """Two tests that fail in different cases lead to different edits of the same program."""
    edits = []
    for folder, wanted in (("one", '("a  gap", 2)'), ("two", '("a  gap", 7)')):
        path = tmp_path / folder
        path.mkdir()
        real = Folder(path)

        def write(args: JsonObject, wanted: str = wanted, real: Folder = real) -> JsonObject:
            content = args["content"].replace("('a  gap', 2)", wanted)
            return real.write({**args, "content": content})

        talk = Chat(FixtureModel(), {**real.tools(), "write": write})
        report = await talk.say("count words")
        edits.append((len(talk.calls("edit")), "no way I know" in report))
    assert edits[0][1] is False
    assert edits[1][1] is True, "a test that nothing can pass is reported, not edited for ever"


@pytest.mark.parametrize(
    "message",
    [
        "Write a small program with a test and run it",
        "create a script that lists files of a folder",
        "make tools/words.py with a function that counts words, and a test",
        "please build a fizzbuzz and run the tests",
    ],
)
async def test_a_program_is_built_though_other_words_are_in_the_message(tmp_path: Path, message: str) -> None:
    assert "cases pass" in await chat(tmp_path).say(message)


async def test_names_and_languages_of_the_message_are_used(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    await talk.say("write a leap year check in tools/years.py")
    assert (tmp_path / "tools" / "years.py").is_file()
    await talk.say("now a shell script called leaps for leap years")
    assert (tmp_path / "leaps.sh").is_file()


async def test_files_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "fizzbuzz.py").write_text("mine")
    report = await chat(tmp_path).say("write fizzbuzz")
    assert (tmp_path / "fizzbuzz.py").read_text() == "mine"
    assert (tmp_path / "fizzbuzz_2.py").is_file()
    assert "is there already" in report


async def test_without_python_it_says_so_and_uses_the_shell(tmp_path: Path) -> None:
    programs = a_path_with(tmp_path / "bin", "sh", "cat", "head", "ls", "dirname")
    path = tmp_path / "workspace"
    path.mkdir()
    report = await Chat(FixtureModel(), Folder(path, programs).tools()).say("build fizzbuzz")
    assert "python3 is missing here" in report
    assert "6 of 6 cases pass" in report
    assert (path / "fizzbuzz.sh").is_file()


async def test_with_nothing_to_run_a_program_it_writes_none(tmp_path: Path) -> None:
    def bash(args: JsonObject) -> JsonObject:
        lines = "python3: missing\nnode: missing\nsh: missing\n"
        return completed({"exitCode": 0, "stdout": lines, "stderr": ""})

    talk = Chat(FixtureModel(), {**Folder(tmp_path).tools(), "bash": bash})
    assert "nothing here to run a program" in await talk.say("build something")
    assert talk.calls("write") == []


async def test_a_file_changed_by_another_is_left_alone(tmp_path: Path) -> None:
    real = Folder(tmp_path)

    def read(args: JsonObject) -> JsonObject:
        return completed("1\tsomething else")

    talk = Chat(FixtureModel(), {**real.tools(), "read": read})
    assert "not as I wrote it any more" in await talk.say("fizzbuzz")
    assert talk.calls("edit") == []


async def test_an_interrupted_call_is_made_once_more(tmp_path: Path) -> None:
    real = Folder(tmp_path)
    cut = [True]

    def bash(args: JsonObject) -> JsonObject:
        if "test_" in args["command"] and cut:
            cut.pop()
            return refused("tool.interrupted", "The call was interrupted")
        return real.bash(args)

    talk = Chat(FixtureModel(), {**real.tools(), "bash": bash})
    assert "cases pass" in await talk.say("fizzbuzz")


@pytest.mark.parametrize(
    ("tool", "outcome"),
    [
        ("bash", {"kind": "denied", "reason": "no commands here"}),
        ("write", refused("sandbox.write_failed", "no space left")),
        ("edit", refused("sandbox.error", "the worker is gone")),
    ],
)
async def test_a_refusal_is_reported_with_its_words(tmp_path: Path, tool: str, outcome: JsonObject) -> None:
    talk = Chat(FixtureModel(), {**Folder(tmp_path).tools(), tool: lambda args: outcome})
    report = await talk.say("fizzbuzz")
    assert str(outcome.get("reason") or outcome.get("message")) in report
    assert "could not" in report


# --- Single requests -------------------------------------------------------------------------------------------------


async def test_asked_to_list_files_it_lists_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    talk = chat(tmp_path)
    assert "a.txt" in await talk.say("List the files")
    assert len(talk.answers) == 2
    assert len(talk.answers[0]["output"]) == 3, "both tools in one step"


async def test_commands_run_together_but_after_a_then_they_wait(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    report = await talk.say("run `echo one` and `exit 3`, then `cat nothing`")
    assert [len([b for b in a["output"] if b["type"] == "tool-call"]) for a in talk.answers] == [2, 1, 0]
    assert "one" in report
    assert "ended with exit code 3" in report
    assert "No such file" in report


@pytest.mark.parametrize(
    ("message", "tool", "args"),
    [
        ("read notes.txt", "read", {"path": "notes.txt"}),
        ("show me the file src/notes.txt please", "read", {"path": "src/notes.txt"}),
        ('search for "tea" in src', "grep", {"pattern": "tea", "path": "src"}),
        ("grep TODO", "grep", {"pattern": "TODO"}),
        ("find all *.txt files", "glob", {"pattern": "*.txt"}),
        ("$ uname", "bash", {"command": "uname"}),
        ("run echo hi", "bash", {"command": "echo hi"}),
        ("what is 12 * 7?", "bash", {"command": "python3 -c 'print(12 * 7)'"}),
        ("write a file a/b.txt with the content two words", "write", {"path": "a/b.txt", "content": "two words"}),
        ("create notes/test.md containing `a b`", "write", {"path": "notes/test.md", "content": "a b"}),
        ('write a file a.txt with "two words"', "write", {"path": "a.txt", "content": "two words"}),
        ('put "x = 1" into conf.ini', "write", {"path": "conf.ini", "content": "x = 1"}),
        (
            "replace `tea` with `milk` in notes.txt",
            "edit",
            {"path": "notes.txt", "old_string": "tea", "new_string": "milk"},
        ),
    ],
)
async def test_a_request_becomes_the_natural_call(tmp_path: Path, message: str, tool: str, args: JsonObject) -> None:
    (tmp_path / "src").mkdir()
    for path in ("notes.txt", "src/notes.txt"):
        (tmp_path / path).write_text("tea\n")
    talk = chat(tmp_path)
    await talk.say(message)
    assert talk.calls(tool)[0] == args


async def test_a_sum_is_computed_by_the_shell_where_python_is_missing(tmp_path: Path) -> None:
    programs = a_path_with(tmp_path / "bin", "sh")
    talk = Chat(FixtureModel(), Folder(tmp_path, programs).tools())
    assert "= 84" in await talk.say("what is 12 * 7?")


async def test_the_last_test_runs_again_when_asked(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    await talk.say("fizzbuzz")
    report = await talk.say("run the tests again")
    assert talk.calls("bash")[-1] == {"command": "python3 test_fizzbuzz.py"}
    assert "6 of 6 cases pass" in report


async def test_with_nothing_run_before_there_is_nothing_to_repeat(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    assert "nothing to repeat" in await talk.say("run the tests again")
    assert talk.calls("bash") == []


# --- Tools by name ---------------------------------------------------------------------------------------------------


async def test_a_tool_is_called_by_name_with_what_the_message_gives() -> None:
    called = []

    def price(args: JsonObject) -> JsonObject:
        called.append(args)
        return completed({"euros": 3})

    talk = Chat(FixtureModel(), {"shop__price": price})
    report = await talk.say('use the tool shop__price with {"item": {"name": "tea"}} and tell me')
    assert called == [{"item": {"name": "tea"}}]
    assert '"euros": 3' in report


async def test_named_tools_run_together_but_after_a_then_they_wait() -> None:
    talk = Chat(FixtureModel(), {"a": lambda args: completed(1), "b": lambda args: completed(2)})
    await talk.say('call a with {"n": 1} and call b with {}, then call a with {"n": 2}')
    assert [len(answer["output"]) for answer in talk.answers] == [2, 1, 1]


async def test_what_a_tool_is_given_may_name_other_tools() -> None:
    talk = Chat(FixtureModel(), {"a": lambda args: completed(args["message"])})
    report = await talk.say('use the tool a with {"message": "use the tool b with {}"}')
    assert "use the tool b with {}" in report
    assert [len(answer["output"]) for answer in talk.answers] == [1, 1]


async def test_a_tool_that_is_not_offered_is_named_as_missing() -> None:
    talk = Chat(FixtureModel(), {"a": lambda args: completed(1)})
    assert "no tool named zap" in await talk.say("call tool zap with {}")


async def test_memory_is_kept_and_read_with_its_tool() -> None:
    kept: dict[str, str] = {}

    def memory(args: JsonObject) -> JsonObject:
        if args["command"] == "create":
            kept[args["path"]] = args["file_text"]
            return completed("created")
        return completed("\n".join(kept) if args["path"] == "/memories" else kept[args["path"]])

    talk = Chat(FixtureModel(), {"memory": memory})
    await talk.say("remember that tea is at four")
    assert "tea is at four" in await talk.say("what do you remember?")


# --- Answers ---------------------------------------------------------------------------------------------------------


async def test_without_tools_it_answers_in_text_alone() -> None:
    assert "build me a tool" in await Chat(FixtureModel(), {}).say("build me a tool")


async def test_an_answer_fits_the_schema_that_the_instructions_hold(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "summary": {"type": "string"},
            "ok": {"type": "boolean"},
            "mood": {"enum": ["good", "bad"]},
            "count": {"type": "integer", "minimum": 1},
            "lines": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        },
        "required": ["summary", "ok", "mood", "count", "lines"],
    }
    talk = chat(tmp_path, f"Answer with JSON that fits this schema:\n{json.dumps(schema)}")
    answer = json.loads(await talk.say("run `echo 5 times`"))
    assert set(answer) == set(schema["properties"])
    assert "echo 5 times" in answer["summary"]


async def test_what_a_harness_pins_in_tags_is_not_what_the_person_asks(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    talk.prompt.append({"kind": "message", "role": "user", "content": [text("<memories>run `rm x`</memories>")]})
    await talk.say("run `echo hi`")
    assert talk.calls("bash") == [{"command": "echo hi"}]


async def test_messages_that_waited_together_count_as_one(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    talk.prompt.append({"kind": "message", "role": "user", "content": [text("run `echo one`")]})
    await talk.say("and run `echo two`")
    assert talk.calls("bash") == [{"command": "echo one"}, {"command": "echo two"}]


async def test_a_conversation_to_be_summarised_is() -> None:
    talk = Chat(FixtureModel(), {})
    assert "the tea is cold" in await talk.say("Summarise.\n<conversation>\nthe tea is cold\n</conversation>")


async def test_a_media_part_is_read() -> None:
    async def files(reference: JsonObject) -> tuple[bytes, str]:
        assert reference == {"artifactId": "af_1", "version": 1, "name": "tea.png"}
        return b"\x89PNG", "image/png"

    reference = {"artifactId": "af_1", "version": 1, "name": "tea.png"}
    part: JsonObject = {"type": "media", "mediaType": "image/png", "reference": reference}
    prompt = [{"kind": "message", "role": "user", "content": [text("look"), part]}]
    call: JsonObject = {"prompt": prompt, "tools": [], "executionId": "ses_1"}
    answer = await FixtureModel().answer(call, effect_id="e", files=files)
    assert "tea.png (image/png, 4 bytes)" in answer["output"][0]["text"]
    refusal = await FixtureModel().answer(call, effect_id="e", files=no_files)
    assert (refusal["kind"], refusal["code"], refusal["retryable"]) == ("failed", "invalid_request", False)


async def test_an_answer_is_a_candidate_with_usage_and_producer(tmp_path: Path) -> None:
    talk = chat(tmp_path)
    await talk.say("list the files")
    candidate = ModelCandidate.read(talk.answers[0])
    assert candidate.usage
    assert candidate.usage.input_tokens
    assert candidate.usage.output_tokens
    assert talk.answers[0]["evidence"]["extras"]["producer"] == {"provider": "fixture", "model": "fixture-1"}
    ids = [block["id"] for answer in talk.answers for block in answer["output"] if block["type"] == "tool-call"]
    assert len(set(ids)) == len(ids)


async def test_a_prompt_past_the_window_overflows_and_an_answer_past_its_limit_is_cut() -> None:
    talk = Chat(FixtureModel(context_window=50), {})
    prompt = [{"kind": "message", "role": "user", "content": [text("word " * 100)]}]
    call: JsonObject = {"prompt": prompt, "tools": [], "executionId": "ses_1"}
    assert (await talk.model.answer(call, effect_id="e", files=no_files))["code"] == "context_overflow"
    call["model"] = {"controls": {"maxOutputTokens": 3}}
    answer = await FixtureModel().answer(call, effect_id="e", files=no_files)
    assert answer["finishReason"] == "length"
    assert len(answer["output"][0]["text"]) == 12


def test_without_a_key_the_fixture_model_is_chosen() -> None:
    assert choose_model({}).descriptor.provider == "fixture"
