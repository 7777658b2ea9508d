"""Training data out of an archive: nothing leaks, nothing is untrue, and trainers can read it."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive import Store
from archive.training_data import Options, export_training_data
from archive.training_data.columns import COLUMNS
from archive.training_data.exporting import select
from archive.training_data.facts import Fact, Place
from archive.training_data.layouts import FORMATS
from archive.training_data.normal import normal_source, normal_text
from archive.training_data.rewards import gain_over, reward
from archive.training_data.splitting import assign
from evo_l2.contracts import Candidate, Message, ModelCall, Outcome, Reply
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.evaluation import BuildReport, Environment, Estimate, Evaluation, Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from experiments.rendering import PromptRenderer
from experiments.seeds import load_seeds
from mutators.edits import apply_edits, parse_edits
from mutators.replies import read_kernel

SEEDS = load_seeds("cpu", "nn")
ENVIRONMENT = Environment("cpu", {"processor": "one", "baseline": "a library", "harness": "4"})
SHAPES = ((64, 64, 64, 1), (128, 64, 64, 1), (64, 64, 256, 1))


def _load_cases() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


def build(status: Status, number: int, seed: int, shape: tuple[int, ...]) -> Evaluation:
    """A verdict of that status; right kernels are timed, at a speed that follows from the number."""
    report = BuildReport(0.1, "", f"code-{number}", {"simd_bits": 256, "n_fma": number % 70})
    if status is not Status.PASSED:
        return Evaluation(Verdict(status, "a gate", f"kernel {number} is at fault", report, (256.0, 4.0, 0.0)))
    speedup = 0.25 * 1.3 ** (number % 9)
    session = cases.session(seed, speedup)
    case = session.cases[0]
    session = type(session)((type(case)(shape, case.kernel_us, case.baseline_us, case.kept),), "search")
    return Evaluation(Verdict(status, None, None, report, (256.0, float(number % 70), 0.0)), session, 0.1)


def fill(path: Path, seed: int, n_candidates: int, shapes: tuple[tuple[int, ...], ...] = SHAPES[:1]) -> Path:
    """An archive of one run for each shape: seeds, then offspring of every kind, by moves and by a model's replies."""
    rng = random.Random(seed)
    with Store.open(path) as store:
        for shape in shapes:
            problem = Hgemm((shape,))
            run = store.start_run("run", problem, ENVIRONMENT, "cpu", {}, seed)
            known: dict[str, Kernel] = {}
            for index in range(n_candidates):
                number = rng.randrange(10**6)
                parent = rng.choice(list(known.values())) if index >= len(SEEDS) else None
                candidate = _candidate(rng, problem, index, number, parent, run.find, shape)
                run.add(candidate)
                if candidate.evaluation is not None and candidate.evaluation.status is Status.PASSED:
                    assert candidate.kernel is not None
                    known[candidate.kernel.digest] = candidate.kernel
    return path


def _candidate(rng, problem, index, number, parent, find, shape):
    common = {"index": index, "asked_after": index, "seconds": {"wall": 0.1}}
    if parent is None:
        evaluation = build(Status.PASSED, number, index, shape)
        return Candidate(operator="seed", parents=(), outcome=Outcome.EVALUATED, kernel=SEEDS[index],
                         identity=f"{number}", evaluation=evaluation, **common)  # fmt: skip
    movable = [tunable for tunable in parent.tunables if len(tunable.domain) > 1]
    tunable = rng.choice(movable)
    child = parent.with_tunables({tunable.name: rng.choice([v for v in tunable.domain if v != tunable.value])})
    of_model = rng.random() < 0.4
    operator = rng.choice(["edit", "rewrite"]) if of_model else "parametric"
    text = f"```c\n{child.source}```"
    if operator == "edit":
        old = next(line for line in parent.source.split("\n") if line.startswith(f"#define {tunable.name} "))
        new = next(line for line in child.source.split("\n") if line.startswith(f"#define {tunable.name} "))
        text = f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE"
    lost = of_model and rng.random() < 0.3
    reply = Reply("sorry" if lost else text, 10, 10, 0.1)
    prompt = (Message("system", "rules"), Message("user", f"improve {parent.digest[:8]}"))
    calls = (ModelCall("tiny+lora3", prompt, reply, number, 64),) if of_model else ()
    common |= {"operator": operator, "parents": (parent.digest,), "calls": calls}
    if lost:
        return Candidate(outcome=Outcome.NO_KERNEL, message="no kernel", **common)
    original = find(digest=child.digest)
    if original is not None:
        return Candidate(outcome=Outcome.DUPLICATE, message="known", kernel=child, duplicate_of=original, **common)
    status = Status.PASSED if rng.random() < 0.7 else rng.choice([Status.INCORRECT, Status.RUNTIME_ERROR])
    return Candidate(outcome=Outcome.EVALUATED, kernel=child, identity=f"{number}",
                     evaluation=build(status, number, index, shape), **common)  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("data") / "a.db", 7, 60)


def rows_of(path: Path, form: str, **options):
    with Store.open(path) as store:
        shop, drafts = select(store, Options(form, **options), PromptRenderer(4096))
    return shop, drafts


# --- what must not leak -----------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), form=st.sampled_from(FORMATS), n_shapes=st.integers(1, 3))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_no_component_and_no_completion_crosses_splits(seed, form, n_shapes, tmp_path_factory):
    path = fill(tmp_path_factory.mktemp("leak") / "a.db", seed, 16, SHAPES[:n_shapes])
    _, drafts = rows_of(path, form)
    components, texts, shapes = defaultdict(set), defaultdict(set), defaultdict(set)
    for split, members in drafts.items():
        for draft in members:
            components[draft.values["lineage"]["component"]].add(split)
            shapes[draft.values["problem"]["key"]].add(split)
            for text in draft.completions:
                texts[normal_text(text)].add(split)
    for found in (components, texts, shapes if n_shapes == 3 else {}):
        assert all(len(splits) == 1 for splits in found.values())
    with Store.open(path) as store:
        born = store.read(
            "SELECT k.digest, q.digest FROM candidates c JOIN kernels k ON k.id = c.kernel_id"
            " JOIN candidate_parents p ON p.candidate_id = c.id JOIN kernels q ON q.id = p.kernel_id"
        )
    split_of = {d: split for split, members in drafts.items() for draft in members for d in _digests(draft.values)}
    assert all(split_of.get(parent, split_of[d]) == split_of[d] for d, parent in born if d in split_of)


def _digests(row):
    facts = [row.get("chosen_facts"), row.get("rejected_facts"), *row.get("known_facts", ())]
    return [d for d in (row.get("digest"), *(fact["digest"] for fact in facts if fact)) if d is not None]


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(1, 100), min_size=1, max_size=12))
def test_the_largest_group_trains_and_three_groups_fill_three_splits(weights):
    found = assign(weights)
    largest = max(weights, key=lambda name: (weights[name], name))
    assert found[largest] == "train"
    assert len(set(found.values())) == min(3, len(weights))


# --- what must be true ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["sft", "kto"])
def test_what_a_reply_says_is_the_kernel_of_its_row(archive, form):
    _, drafts = rows_of(archive, form)
    rows = [draft.values for members in drafts.values() for draft in members]
    assert {row["prompt_from"] for row in rows} >= {"rendered"}
    with Store.open(archive) as store:
        source = dict(store.read("SELECT digest, source FROM kernels"))
    n_edits = 0
    for row in rows:
        text = row["completion"][0]["content"]
        if row["evidence"]["status"] == "no_kernel":
            continue
        if row["form"] == "edit":
            edited = apply_edits(source[row["lineage"]["parents"][0]], parse_edits(text).replacements)
            assert edited.source == source[row["digest"]]
            n_edits += 1
        else:
            kernel = read_kernel(text, Kernel("", "cpu")).kernel
            assert kernel is not None
            assert kernel.source == source[row["digest"]]
    assert n_edits > 3


def test_stored_prompts_and_replies_stay_as_they_are(archive):
    _, drafts = rows_of(archive, "kto")
    rows = [d.values for members in drafts.values() for d in members if d.values["prompt_from"] == "stored"]
    assert rows
    for row in rows:
        assert row["prompt"][0] == {"role": "system", "content": "rules"}
        assert (row["generator"], row["adapter"]) == ("tiny", "lora3")


def test_steps_gained_beyond_the_interval_and_labels_follow_the_gain(archive):
    _, steps = rows_of(archive, "sft")
    assert all(d.values["gain_low"] > 1 for members in steps.values() for d in members if d.values["kind"] == "step")
    _, labelled = rows_of(archive, "kto")
    rows = [d.values for members in labelled.values() for d in members]
    assert {row["label"] for row in rows} == {True, False}
    for row in rows:
        right = row["evidence"]["status"] == "passed"
        assert row["label"] == (right and row["gain_low"] > 1)
        assert not right or row["gain_low"] > 1 or row["gain_high"] < 1


def test_pairs_are_of_one_prompt_and_the_chosen_is_better(archive):
    _, drafts = rows_of(archive, "dpo")
    rows = [draft.values for members in drafts.values() for draft in members]
    assert {row["pair_kind"] for row in rows} == {"right-over-wrong", "faster-over-slower"}
    for row in rows:
        better, worse = row["chosen_facts"], row["rejected_facts"]
        assert better["parents"] == worse["parents"]
        assert row["margin"] > 0
        if row["pair_kind"] == "faster-over-slower":
            assert better["speedup_low"] > worse["speedup_high"]
        else:
            assert better["evidence"]["status"] == "passed" != worse["evidence"]["status"]


def test_groups_hold_what_judging_takes(archive):
    _, drafts = rows_of(archive, "grpo")
    rows = [draft.values for members in drafts.values() for draft in members]
    for row in rows:
        truth = json.loads(row["ground_truth"])
        assert truth["problem"]["name"] == "hgemm"
        assert truth["baseline"] == "a library"
        assert Kernel(truth["parents"][0]["source"], truth["target"]).digest == truth["parents"][0]["digest"]
        assert row["known_rewards"] == sorted(row["known_rewards"], reverse=True)
        assert len(row["known_completions"]) == len(row["known_rewards"]) == len(row["known_facts"])
        assert len({normal_text(text) for text in row["known_completions"]}) == len(row["known_completions"])
    assert {reward for row in rows for reward in row["known_rewards"]} >= {-1.0, -0.6, -0.4}


def test_exemplars_are_slower_than_what_is_asked_for_beyond_both_intervals(archive):
    _, drafts = rows_of(archive, "contrastive")
    rows = [draft.values for members in drafts.values() for draft in members]
    assert rows
    for row in rows:
        assert len(row["exemplars"]) == 2
        assert [e["speedup_low"] for e in row["exemplars"]] == sorted(e["speedup_low"] for e in row["exemplars"])
        assert all(e["speedup_high"] < row["speedup_low"] for e in row["exemplars"])
        assert row["gain_low"] < row["speedup"] / row["exemplars"][-1]["speedup"] < row["gain_high"]
        assert row["reward"] >= 0
        assert all(e["source"].rstrip("\n") in row["prompt"][1]["content"] for e in row["exemplars"])


def test_a_cap_is_not_spent_on_one_split(tmp_path):
    """Many unrelated kernels of one cell: each split has its share of the rows that the cell may have."""
    with Store.open(tmp_path / "a.db") as store:
        run = store.start_run("one", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        for i in range(120):
            run.add(cases.evaluated(i, i, speedup=1.05**i))
        _, drafts = select(store, Options("contrastive", per_cell=40), PromptRenderer(4096))
    assert sum(len(members) for members in drafts.values()) == 40
    assert len(drafts["train"]) > 20
    assert len(drafts) == 3


def test_caps_hold_and_the_rest_is_counted(archive):
    shop, drafts = rows_of(archive, "kto", per_cell=2, per_root=5)
    rows = [draft.values for members in drafts.values() for draft in members]
    cells, roots = defaultdict(int), defaultdict(int)
    for row in rows:
        cells[tuple(row["cell"]) or (row["evidence"]["status"], row["evidence"]["gate"])] += 1
        roots[row["lineage"]["root"]] += 1
    assert max(cells.values()) <= 2
    assert max(roots.values()) <= 5
    assert shop.dropped["its line of descent has 5 rows already"] > 0


PLACE = Place("p", "e")


def fact(outcome=Outcome.EVALUATED, status=None, log_ratio=None, spread=0.001):
    estimate = Estimate(log_ratio, log_ratio - spread, log_ratio + spread, 9) if log_ratio is not None else None
    return Fact(1, "r", 0, PLACE, "edit", outcome, status, None, None, "d", "i", ("q",), estimate, 1, None, None)


def test_the_ladder_rises_from_no_kernel_to_a_fast_one():
    parent = Estimate(0.0, -0.001, 0.001, 9)
    ladder = [
        fact(Outcome.NO_KERNEL), fact(Outcome.DUPLICATE), fact(status=Status.UNLAUNCHABLE), fact(status=Status.TIMEOUT),
        fact(status=Status.INCORRECT), fact(status=Status.PASSED, log_ratio=-3.0), fact(status=Status.PASSED, log_ratio=0.01),
        fact(status=Status.PASSED, log_ratio=np.log(2)), fact(status=Status.PASSED, log_ratio=9.0),
    ]  # fmt: skip
    assert [reward(one, parent) for one in ladder] == [-1.0, -0.9, -0.8, -0.6, -0.4, -0.3, 0.0, pytest.approx(1.0), 4.0]
    assert reward(fact(status=Status.BUILD_ERROR), parent) == reward(fact(status=Status.CHEATING), parent) == -1.0
    assert reward(fact(Outcome.GENERATOR_FAILED), parent) is None
    assert reward(fact(status=Status.INCONCLUSIVE), parent) is None
    assert reward(fact(status=Status.PASSED, log_ratio=0.3, spread=0.3), parent) == 0.0


@given(st.floats(-2, 2), st.floats(0, 1), st.floats(0, 1), st.floats(-2, 2), st.floats(0, 1), st.floats(0, 1))
def test_a_gain_lies_within_its_interval_and_turns_with_its_sides(a, da, ea, b, db, eb):
    one, other = Estimate(a, a - da, a + ea, 9), Estimate(b, b - db, b + eb, 9)
    gain, back = gain_over(one, other), gain_over(other, one)
    assert gain.log_low <= gain.log_ratio <= gain.log_high
    assert gain.log_low >= (a - da) - (b + eb) - 1e-9
    assert (back.log_low, back.log_high) == (pytest.approx(-gain.log_high), pytest.approx(-gain.log_low))


def test_comments_and_white_space_do_not_tell_kernels_apart_and_launches_and_values_do():
    source = SEEDS[0].source
    assert normal_source("// a note\n\n" + source.replace("    ", "\t")) == normal_source(source)
    assert normal_source("int a  =  1 ; /* b\n c */ int d;") == normal_source("int a=1;int d;")
    assert normal_source("//! layout nn\nint a;") != normal_source("//! layout nt\nint a;")
    assert normal_source('char *s = "// no comment";') != normal_source('char *s = "";')
    assert normal_source("#define F(x) 1") != normal_source("#define F (x) 1")
    assert normal_source("#define A 1\nint a;") != normal_source("#define A 1 int a;")


# --- what is written --------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_archive_gives_the_same_bytes_and_loads(archive, form, tmp_path, monkeypatch):
    written = []
    for name in ("one", "two"):
        with Store.open(archive) as store:
            written.append(export_training_data(store, tmp_path / name, Options(form), PromptRenderer(4096)))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert written[0].n_rows["train"] > 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    data = datasets.load_dataset(str(tmp_path / "one"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in data.items()} == written[0].n_rows
    names = [column.name for column in COLUMNS[form]]
    assert data["train"].column_names == names
    line = json.loads((tmp_path / "one" / "jsonl" / "train.jsonl").read_text().split("\n")[0])
    assert list(line) == names
    assert data["train"][0] == line
    _check_columns(form, data["train"])


def test_an_archive_on_a_server_gives_the_same_bytes(postgres, tmp_path):
    """Made by the same additions; the statements and their order mean the same there."""
    for place, name in ((tmp_path / "a.db", "file"), (postgres.fresh(), "server")):
        with Store.open(fill(place, 11, 20)) as store:
            for form in FORMATS:
                export_training_data(store, tmp_path / name / form, Options(form), PromptRenderer(4096))
    assert files_of(tmp_path / "file") == files_of(tmp_path / "server")


def _check_columns(form, rows):
    """What trl's trainer of each form asks of its columns."""
    for row in rows:
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        replies = {"dpo": ("chosen", "rejected"), "grpo": ()}.get(form, ("completion",))
        for name in replies:
            (message,) = row[name]
            assert message["role"] == "assistant"
            assert message["content"].strip()
        if form == "kto":
            assert isinstance(row["label"], bool)
    # GRPO hands every other column to the reward function, beside these of its own.
    taken = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
    assert not taken & set(rows.column_names)


def test_layouts_have_the_columns_that_their_trainers_read(archive, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    with Store.open(archive) as store:
        for form, layout in (
            ("grpo", "verl"),
            ("sft", "verl"),
            ("grpo", "openrlhf"),
            ("dpo", "openrlhf"),
            ("contrastive", "verl"),
        ):
            export_training_data(store, tmp_path / f"{form}-{layout}", Options(form, layout), PromptRenderer(4096))
    rows = pq.read_table(tmp_path / "grpo-verl" / "data" / "train.parquet").to_pylist()
    assert list(rows[0]) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert rows[0]["data_source"] == "evo-l2/hgemm"
    assert rows[0]["reward_model"]["style"] == "rule"
    assert "parents" in json.loads(rows[0]["reward_model"]["ground_truth"])
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
    assert {row["extra_info"]["split"] for row in rows} == {"train"}
    said = pq.read_table(tmp_path / "sft-verl" / "data" / "train.parquet").to_pylist()[0]["messages"]
    assert [message["role"] for message in said] == ["system", "user", "assistant"]
    row = pq.read_table(tmp_path / "contrastive-verl" / "data" / "train.parquet").to_pylist()[0]
    truth, exemplars = json.loads(row["reward_model"]["ground_truth"]), row["extra_info"]["exemplars"]
    assert [parent["source"] for parent in truth["parents"]] == [one["source"] for one in reversed(exemplars)]
    row = pq.read_table(tmp_path / "grpo-openrlhf" / "data" / "train.parquet").to_pylist()[0]
    assert row["label"] == row["ground_truth"]
    assert row["datasource"] == "evo-l2/hgemm"
    pair = pq.read_table(tmp_path / "dpo-openrlhf" / "data" / "train.parquet").to_pylist()[0]
    assert [m["role"] for m in pair["prompt"] + pair["chosen"]] == ["system", "user", "assistant"]
    with pytest.raises(ConfigurationError, match="verl has no trainer for dpo"):
        Options("dpo", "verl")


def test_the_card_is_made_from_the_rows(archive, tmp_path):
    import yaml

    with Store.open(archive) as store:
        done = export_training_data(store, tmp_path / "d", Options("kto", licence="MIT"), PromptRenderer(4096))
    text = (tmp_path / "d" / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["license"] == "mit"
    assert [entry["split"] for entry in head["configs"][0]["data_files"]] == list(done.n_rows)
    for split, n_rows in done.n_rows.items():
        assert f"| {split} | {n_rows} |" in text
    for why, n in done.dropped.items():
        assert f"| {n} | {why} |" in text
    assert "tiny" in text
    assert "lora3" in text


def test_without_pyarrow_there_is_jsonl_alone(archive, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Store.open(archive) as store:
        done = export_training_data(store, tmp_path / "d", Options("sft"), PromptRenderer(4096))
    assert not done.parquet
    assert not (tmp_path / "d" / "data").exists()
    assert "path: jsonl/train.jsonl" in (tmp_path / "d" / "README.md").read_text()


def test_what_cannot_be_exported_leaves_nothing_behind(archive, tmp_path):
    with Store.open(tmp_path / "empty.db") as store:
        run = store.start_run("one", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add(cases.evaluated(0, 0, status=Status.INCORRECT))
        with pytest.raises(StorageError, match=r"nothing to export as sft.*1 incorrect"):
            export_training_data(store, tmp_path / "d", Options("sft"), PromptRenderer(4096))
    with Store.open(archive) as store:
        (tmp_path / "there").mkdir()
        done = export_training_data(store, tmp_path / "there", Options("sft"), PromptRenderer(4096))
        assert {path.name for path in done.directory.iterdir()} == {"README.md", "data", "jsonl"}
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine.txt").write_text("mine")
        with pytest.raises(StorageError, match="not empty"):
            export_training_data(store, tmp_path / "full", Options("sft"), PromptRenderer(4096))
        with pytest.raises(StorageError, match="expected one of run"):
            export_training_data(store, tmp_path / "d", Options("sft", run="none"), PromptRenderer(4096))
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("empty.db")} == {"full", "there"}


def test_odd_texts_and_numbers_neither_stop_an_export_nor_get_into_it(tmp_path):
    lone, nul = "\udcff", "\0"
    with Store.open(tmp_path / "odd.db") as store:
        run = store.start_run("odd", Hgemm(SHAPES[:1]), ENVIRONMENT, "cpu", {}, 1)

        def add(index, source, number, status=Status.PASSED, parents=(), reply=None):
            calls = (ModelCall("m", (Message("user", f"say {lone}"),), Reply(reply, 1, 1, 0.1), 1, 1),) if reply else ()
            run.add(Candidate(
                index=index, operator="edit" if parents else "seed", parents=parents, asked_after=index,
                outcome=Outcome.EVALUATED, kernel=Kernel(source, "cpu"), identity=f"i{number}",
                evaluation=build(status, number, index, SHAPES[0]), calls=calls,
            ))  # fmt: skip

        seed = SEEDS[0].source
        add(0, seed, 0)
        add(1, seed.replace("MC 32", "MC 64"), 1, parents=(SEEDS[0].digest,))
        add(2, seed + f"// {lone}\n", 2, parents=(SEEDS[0].digest,))
        add(3, seed + f"int a; // {nul}\n", 3, parents=(SEEDS[0].digest,))
        add(4, seed + "int b;\n", 4, parents=(SEEDS[0].digest,), reply="x" * 1_000_000)
        add(5, seed + "int c;\n", 5, Status.INCORRECT, (Kernel(seed + f"// {lone}\n", "cpu").digest,))
        add(6, "", 6, Status.REJECTED, (SEEDS[0].digest,))
        for form in FORMATS:
            try:
                done = export_training_data(store, tmp_path / form, Options(form), PromptRenderer(4096))
            except StorageError as error:
                assert form == "contrastive", error  # noqa: PT017
                continue
            for path in (done.directory / "jsonl").iterdir():
                for line in path.read_text(encoding="utf-8").splitlines():
                    assert "NaN" not in line
                    assert "x" * 1000 not in json.loads(line)["prompt"][-1]["content"]
