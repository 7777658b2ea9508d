"""Configuration: presets load, mistakes are one line that names the key, what was expected and what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evo_l2.contracts import Message, ModelCall
from evo_l2.errors import ConfigurationError
from evo_l2.problems.shapes import SHAPE_SETS
from experiments.config import RunConfig, load_config, restore_config
from experiments.documents import apply_override, keys, preset_names, preset_text
from experiments.parts import load_seed_kernels, make_generator, make_problem, warm_up

KERNEL = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K) { C[0] = A[0] * B[0]; }
"""
MINIMAL = "name: mine\nbudget: {evaluations: 5}\n"


def refusal(*overrides: str, source: str = "smoke") -> str:
    """The one line that refuses a preset or file with overrides."""
    with pytest.raises(ConfigurationError) as caught:
        load_config(source, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def document(tmp_path: Path, text: str) -> str:
    """The path of a YAML file with this text."""
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_says_what_it_is_for(name: str) -> None:
    config = load_config(name)
    assert config.name == name
    assert preset_text(name).startswith("# ")


@pytest.mark.parametrize("name", preset_names())
def test_a_dump_is_json_and_gives_an_equal_configuration_back(name: str) -> None:
    config = load_config(name)
    assert restore_config(json.loads(json.dumps(config.dump()))) == config


def test_a_named_set_of_shapes_survives_a_dump() -> None:
    config = load_config("smoke", ["problem.shapes=small"])
    assert restore_config(config.dump()).problem.cases == ((64, 64, 64, 1), (128, 128, 128, 1), (256, 256, 256, 1))


def test_a_file_with_only_a_name_and_a_limit_is_enough(tmp_path: Path) -> None:
    config = load_config(document(tmp_path, MINIMAL))
    assert config.name == "mine"
    assert config.search.operators.chosen == {"parametric": 1.0}
    assert config.model_operators == ()
    assert config.archive_path == "runs/mine.db"


def test_an_override_replaces_one_value_and_leaves_its_neighbours() -> None:
    plain, changed = load_config("smoke"), load_config("smoke", ["timing.blocks=9"])
    assert changed.timing.blocks == 9
    assert changed.timing.final_blocks == plain.timing.final_blocks


def test_an_override_of_a_section_replaces_the_whole_section() -> None:
    config = load_config("quickstart", ["search.operators={parametric: 2}", "generator={kind: none}"])
    assert config.search.operators.chosen == {"parametric": 2.0}
    assert config.generator.kind == "none"


def test_the_last_override_of_a_key_counts() -> None:
    assert load_config("smoke", ["seed=1", "seed=2"]).seed == 2


def test_shapes_take_a_batch_as_fourth_number() -> None:
    config = load_config("smoke", ["problem.shapes=[[1, 2, 3], [4, 5, 6, 7]]"])
    assert config.problem.cases == ((1, 2, 3, 1), (4, 5, 6, 7))


def test_exponents_are_numbers() -> None:
    assert load_config("smoke", ["search.exploration=1e-1"]).search.exploration == 0.1


def test_modes_set_how_far_the_search_looks_ahead() -> None:
    assert load_config("smoke", ["search.mode=steady"]).search.lookahead == 1
    assert load_config("smoke", ["search.mode=generational"]).search.lookahead == 0


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("search.bach=3", "search.batch"),
        ("serch.batch=3", "search"),
        ("budget.wall=3", "budget.wall_s"),
        ("shapes=[[1, 2, 3]]", "problem.shapes"),
        ("wall_s=3", "budget.wall_s"),
        ("search.parametric=2", "search.operators.parametric"),
        ("generator.modle=x", "generator.model"),
        ("cuda.arch=sm_80", "cuda.card"),
        ("arch=sm_80", "cuda.card"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_one_named(override: str, nearest: str) -> None:
    text = refusal(override)
    assert "unknown key" in text
    assert f"perhaps {nearest}," in text
    assert "found " + override.partition("=")[0].split(".")[0] in text


def test_an_unknown_key_like_no_other_points_to_the_list_of_keys() -> None:
    text = refusal("qqqq=1")
    assert "perhaps" not in text
    assert "evo-l2 presets --keys" in text


def test_all_of_a_few_mistakes_are_named_unknown_keys_before_wrong_values() -> None:
    text = refusal("search.batch=x", "search.bach=3", "seed=-1")
    assert text.startswith("3 mistakes: unknown key: ")
    assert text.index("found search.bach") < text.index("seed cannot be used: expected at least 0, found -1")
    assert "search.batch cannot be used: expected a whole number, found 'x'" in text
    assert text.count("try:") == 1


def test_of_many_mistakes_three_are_named_and_the_rest_is_counted() -> None:
    text = refusal("search.batch=x", "search.bach=3", "seed=-1", "timing.blocks=1", "target=tpu")
    assert text.startswith("5 mistakes: ")
    assert "; and 2 more; try: evo-l2 presets --keys" in text


def test_seeds_in_a_file_are_seen_from_its_folder_and_those_of_the_command_line_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mine.c").write_text(KERNEL, encoding="utf-8")
    monkeypatch.chdir(Path(__file__).parent)
    source = document(tmp_path, MINIMAL + "seeds: [kernels/mine.c]\n")
    config = load_config(source)
    (kernel,) = load_seed_kernels(config, make_problem(config))
    assert kernel.source == KERNEL
    config = load_config(source, ["seeds=[kernels/mine.c]"])
    with pytest.raises(ConfigurationError) as caught:
        load_seed_kernels(config, make_problem(config))
    assert f"seed {Path(__file__).parent}/kernels/mine.c cannot be read" in str(caught.value)


def test_builtin_seeds_and_files_can_stand_in_one_list(tmp_path: Path) -> None:
    (tmp_path / "mine.c").write_text(KERNEL, encoding="utf-8")
    config = load_config(document(tmp_path, MINIMAL + "seeds: [builtin, mine.c]\n"))
    assert restore_config(config.dump()) == config
    kernels = load_seed_kernels(config, make_problem(config))
    assert [kernel.source == KERNEL for kernel in kernels] == [False, False, False, True]


def test_kernels_of_a_folder_whose_layout_is_not_asked_for_are_passed_over(tmp_path: Path) -> None:
    for layout in ("nn", "nt"):
        (tmp_path / f"{layout}.c").write_text(KERNEL.replace("layout nn", f"layout {layout}"), encoding="utf-8")
    config = load_config("smoke", [f"seeds=[{tmp_path}]"])
    assert [kernel.launch.layout for kernel in load_seed_kernels(config, make_problem(config))] == ["nn"]
    (tmp_path / "nn.c").unlink()
    with pytest.raises(ConfigurationError, match="at least one kernel file of layout nn, found none in"):
        load_seed_kernels(config, make_problem(config))


def test_the_key_of_shapes_names_every_set_that_can_be_one_objective() -> None:
    (what,) = [key.what for key in keys(RunConfig) if key.path == "problem.shapes"]
    for name, shapes in SHAPE_SETS.items():
        assert (name in what) == (len(shapes) <= 64)


@pytest.mark.parametrize(
    ("override", "expected", "found"),
    [
        ("search.batch=x", "a whole number", "'x'"),
        ("search.batch=2.5", "a whole number", "2.5"),
        ("search.batch=true", "a whole number", "true"),
        ("search.batch='3'", "a whole number", "'3'"),
        ("search.exploration=[]", "a number", "a list"),
        ("search=3", "a section of keys", "3"),
        ("budget.wall_s=0", "more than 0.0", "0"),
        ("seed=-1", "at least 0", "-1"),
        ("timing.blocks=.inf", "a whole number", "Infinity"),
        ("budget.wall_s=.nan", "a finite number", "NaN"),
        ("target=gpu", "cpu or cuda", "'gpu'"),
        ("problem.layouts=[nn, tn]", "nn or nt", "'tn'"),
        ("seed=2026-01-01", "a whole number", "'2026-01-01'"),
        ("seeds=3", "builtin, or a list of files and folders", "3"),
        ("problem.shapes=[[1, 2]]", "a list of [M, N, K] or [M, N, K, BATCH]", "[[1, 2]]"),
        ("problem.shapes=[[1, 2, 0]]", "a list of [M, N, K] or [M, N, K, BATCH]", "[[1, 2, 0]]"),
        ("problem.shapes=[]", "a list of [M, N, K] or [M, N, K, BATCH]", "[]"),
        ("problem.shapes=smal", "one of grid-1000", "'smal'"),
        ("problem.shapes=grid-1000", "at most 64 shapes", "1000"),
        ("name=a b", "text that matches", "'a b'"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected_and_found(override: str, expected: str, found: str) -> None:
    text = refusal(override)
    assert f"expected {expected}" in text
    assert f"found {found}" in text


def test_values_are_never_converted_silently(tmp_path: Path) -> None:
    assert "name cannot be used: expected text, found 7" in refusal(
        source=document(tmp_path, "name: 7\nbudget: {wall_s: 1}\n")
    )


def test_settings_of_a_card_are_refused_on_the_cpu() -> None:
    assert "cuda is set for a run on the CPU" in refusal("cuda.mode=build-only")
    built = load_config("smoke", ["target=cuda", "cuda.mode=build-only", "cuda.card=A100"])
    assert (built.target, built.cuda.mode, built.cuda.card) == ("cuda", "build-only", "A100")
    assert restore_config(built.dump()) == built


def test_operators_of_a_model_need_a_model() -> None:
    assert load_config("quickstart").model_operators == ("edit", "rewrite")
    text = refusal("search.operators.edit=1")
    assert "edit needs a model" in text
    assert "--set generator.kind=embedded" in text


def test_a_run_without_any_limit_is_refused(tmp_path: Path) -> None:
    assert "never end" in refusal(source=document(tmp_path, "name: mine\n"))


def test_a_limit_that_nothing_counts_against_is_no_limit(tmp_path: Path) -> None:
    assert "never end" in refusal(source=document(tmp_path, "name: mine\nbudget: {tokens: 1000}\n"))


@pytest.mark.parametrize(("kind", "key"), [("local", "model"), ("server", "model"), ("recorded", "path")])
def test_a_kind_of_generator_names_the_key_that_it_lacks(kind: str, key: str) -> None:
    assert f"generator.{key} is missing" in refusal(f"generator.kind={kind}")


def test_a_key_pasted_in_place_of_its_variable_is_not_repeated() -> None:
    text = refusal("generator.api_key_env=sk-secret-123")
    assert "sk-secret" not in text
    assert "OPENAI_API_KEY" in text


SERVER = "generator={kind: server, model: m, base_url: 'http://h/v1'}"


@pytest.mark.parametrize(
    ("key", "value", "kind", "others"),
    [
        ("model", "/m", "embedded", "local"),
        ("path", "/r", "embedded", "recorded"),
        ("adapter", "/a", "server", "embedded"),
        ("base_url", "http://h", "embedded", "server"),
        ("api_key_env", "sk-secret-123", "embedded", "server"),
        ("token_field", "max_completion_tokens", "embedded", "server"),
        ("stop", "[x]", "server", "embedded"),
        ("dtype", "bfloat16", "server", "embedded"),
        ("device", "cpu", "server", "embedded"),
    ],
)
def test_a_key_of_another_kind_of_generator_is_refused_and_can_be_taken_back(
    key: str, value: str, kind: str, others: str
) -> None:
    base = SERVER if kind == "server" else f"generator.kind={kind}"
    text = refusal(base, f"generator.{key}={value}")
    assert f"generator.{key} is of no use: expected no such key, as generator.kind is {kind}" in text
    assert f"try: --set generator.{key}=null, or --set generator.kind={others}" in text
    assert "secret" not in text
    assert load_config("smoke", [base, f"generator.{key}={value}", f"generator.{key}=null"]).generator.kind == kind


@pytest.mark.parametrize("kind", ["none", "embedded", "local", "server", "recorded"])
def test_a_preset_s_kind_of_generator_can_be_changed_on_the_command_line(kind: str) -> None:
    keys = {"local": ["model=/m"], "server": ["model=m", "base_url=http://h/v1"], "recorded": ["path=/r"]}.get(kind, [])
    overrides = [f"generator.kind={kind}", "search.operators={parametric: 1}", *(f"generator.{key}" for key in keys)]
    assert load_config("hgemm-cpu", overrides).generator.kind == kind


def test_a_run_without_a_model_passes_over_the_keys_of_one() -> None:
    assert load_config("smoke", ["generator.dtype=bfloat16", "generator.model=m"]).generator.kind == "none"


@pytest.mark.parametrize(
    ("override", "expected", "found"),
    [
        ("generator.token_field=tokens", "max_tokens or max_completion_tokens", "'tokens'"),
        ("generator.dtype=float8", "float32, bfloat16 or float16", "'float8'"),
        ("generator.device=gpu", "cpu or cuda", "'gpu'"),
        ("generator.stop=x", "a list of texts, none of them empty", "'x'"),
        ("generator.stop=[x, '']", "a list of texts, none of them empty", "['x', '']"),
        ("generator.stop=[3]", "a list of texts, none of them empty", "[3]"),
    ],
)
def test_a_wrong_setting_of_a_generator_is_refused(override: str, expected: str, found: str) -> None:
    assert f"expected {expected}, found {found}" in refusal(override)


@pytest.mark.parametrize("key", ["temperature", "top_p"])
def test_only_a_server_can_be_left_to_draw_as_it_likes(key: str) -> None:
    text = refusal("generator.kind=embedded", f"generator.{key}=null")
    assert f"generator.{key} cannot be used: expected a number, as generator.kind is embedded" in text
    assert getattr(load_config("smoke", [SERVER, f"generator.{key}=null"]).generator, key) is None


def made_with(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> dict[str, object]:
    """What the constructor of a generator is told."""
    told: dict[str, object] = {}

    class Told:
        def __init__(self, **options: object) -> None:
            told.update(options)

        def check(self) -> str:
            return ""

    monkeypatch.setattr("mutators.generators.LocalGenerator", Told)
    monkeypatch.setattr("mutators.generators.ServerGenerator", Told)
    make_generator(load_config("smoke", overrides).generator)
    return told


def test_settings_reach_the_generator_and_what_is_left_out_is_the_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["generator.dtype=bfloat16", "generator.device=cpu", r'generator.stop=["\n```\n", end]']
    local = made_with(monkeypatch, "generator.kind=embedded", *keys)
    assert (local["dtype"], local["device"], local["stop"]) == ("bfloat16", "cpu", ("\n```\n", "end"))
    plain = made_with(monkeypatch, "generator.kind=embedded")
    assert (plain["dtype"], plain["device"], plain["stop"]) == ("auto", "auto", ())
    keys = ["generator.token_field=max_completion_tokens", "generator.temperature=null"]
    server = made_with(monkeypatch, SERVER, *keys)
    assert (server["token_field"], server["temperature"], server["top_p"]) == ("max_completion_tokens", None, 0.95)
    assert made_with(monkeypatch, SERVER)["token_field"] == "max_tokens"


def test_settings_of_a_generator_survive_a_dump() -> None:
    config = load_config("smoke", ["generator={kind: embedded, dtype: float16, stop: [a, b]}"])
    assert restore_config(json.loads(json.dumps(config.dump()))) == config


def test_an_archive_from_before_a_key_was_there_is_restored() -> None:
    config = load_config("quickstart")
    data = json.loads(json.dumps(config.dump()))
    for key in ("token_field", "dtype", "device", "stop"):
        del data["generator"][key]
    assert restore_config(data) == config


def test_recorded_replies_that_a_run_was_given_are_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text("".join(json.dumps({"reply": {"text": text}}) + "\n" for text in "abc"), encoding="utf-8")
    settings = load_config("smoke", ["generator.kind=recorded", f"generator.path={path}"]).generator
    prompt = (Message("user", "Go."),)
    first = make_generator(settings)
    assert first is not None
    made = [ModelCall("recorded", prompt, reply, 1, 9) for reply in first.generate([prompt] * 2, [1, 2], max_tokens=9)]
    again = make_generator(settings, made)
    assert again is not None
    assert again.generate([prompt], [3], max_tokens=9)[0].text == "c"
    assert warm_up(again) is None


def test_a_file_with_a_key_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text = refusal(source=document(tmp_path, "name: mine\nseed: 1\nseed: 2\n"))
    assert "'seed' on line 2 and again on line 3" in text


def test_broken_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "line 3, column" in refusal(source=document(tmp_path, "name: mine\nsearch:\n  batch: [1, ]]\n"))


@pytest.mark.parametrize("text", ["", "- 1\n", "plain words\n"])
def test_a_file_that_holds_no_keys_is_no_configuration(tmp_path: Path, text: str) -> None:
    assert "no configuration" in refusal(source=document(tmp_path, text))


def test_yaml_cannot_make_python_objects(tmp_path: Path) -> None:
    assert "line 1" in refusal(source=document(tmp_path, "name: !!python/object/apply:os.getpid []\n"))


def test_a_missing_file_a_folder_and_other_bytes_are_refused(tmp_path: Path) -> None:
    assert "found no file" in refusal(source=str(tmp_path / "none.yaml"))
    assert "is a directory" in refusal(source=f"{tmp_path}/")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal(source=str(tmp_path / "bytes.yaml"))


def test_an_unknown_preset_names_the_nearest() -> None:
    text = refusal(source="quikstart")
    assert "try: evo-l2 run quickstart" in text


@pytest.mark.parametrize("override", ["seed", "=3", "search..batch=3", ".seed=3"])
def test_an_override_that_is_no_key_and_value_is_refused(override: str) -> None:
    assert "expected key=value" in refusal(override)


def test_an_override_below_a_value_is_refused() -> None:
    assert "found seed = 3" in refusal("seed=3", "seed.x=1")


def test_an_override_makes_the_sections_it_needs() -> None:
    data: dict[str, object] = {}
    apply_override(data, "search.operators.edit=0.5")
    assert data == {"search": {"operators": {"edit": 0.5}}}


def test_every_key_says_what_it_means() -> None:
    listed = list(keys(RunConfig))
    assert {"search.operators.edit", "budget.wall_s", "generator.api_key_env"} <= {key.path for key in listed}
    assert [key.path for key in listed if not key.what.endswith(".")] == []


def test_aliases_are_refused_before_they_grow(tmp_path):
    path = tmp_path / "bomb.yaml"
    levels = "\n".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]" for i in range(9))
    path.write_text(f"name: x\na: &a [1, 2]\n{levels}\n")
    with pytest.raises(ConfigurationError, match="line 3: aliases are not taken"):
        load_config(str(path))


def test_a_file_without_end_is_no_configuration():
    with pytest.raises(ConfigurationError, match="is no configuration"):
        load_config("/dev/zero")
