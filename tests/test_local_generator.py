"""The local generator with a real, tiny model: chance, batches, pauses, crashes, and files that are no model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo_l2.contracts import Message
from evo_l2.errors import ModelError
from mutators.generators import LocalGenerator, embedded
from mutators.generators.decoding import Sampling, complete
from mutators.generators.loading import Loaded, load, tokenize
from mutators.generators.worker import WorkerSettings

pytest.importorskip("torch")
pytest.importorskip("transformers")

CONTEXT = 256
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}<assistant>"
USER_ONLY = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
CORPUS = ["for (int i = 0; i < n; i++) acc += a[i] * b[i];", "Write a faster kernel, please. ```c\nvoid f(void);\n```\n"] * 8


def save(
    path: Path, *, template: str | None = TEMPLATE, layers: int = 2, width: int = 32, vocabulary: int | None = None
) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False)
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = template
    configuration = transformers.LlamaConfig(
        vocab_size=vocabulary or len(fast),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
        initializer_range=0.2,
    )
    torch.manual_seed(5)
    transformers.LlamaForCausalLM(configuration).save_pretrained(path)
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[LocalGenerator]:
    with LocalGenerator(tiny, threads=1, max_batch=4, temperature=1.0, top_p=1.0) as generator:
        yield generator


@pytest.fixture(scope="module")
def worker(model: LocalGenerator) -> int:
    """The process of the generator above, once it is ready."""
    before = workers_of(os.getpid())
    model.count_tokens("a")
    (process,) = before
    return process


def loaded(path: Path, **changes: Any) -> Loaded:
    """A model as the worker loads it, in this process."""
    base = {"parent": 0, "model": str(path), "adapter": None, "dtype": "auto", "device": "auto", "threads": 2, "max_batch": 8}
    drawing = {"temperature": 0.0, "top_p": 1.0, "stop": (), "context_tokens": None, "cache_dir": None}
    return load(WorkerSettings(**{**base, **drawing, **changes}))


def reply_texts(model: Loaded, prompts: list[list[Message]], max_tokens: int, sampling: Sampling) -> list[str]:
    """What the worker would answer, all prompts in one batch."""
    tokens = [tokenize(model.tokenizer, [asdict(m) for m in prompt]) for prompt in prompts]
    n = len(prompts)
    done = complete(model.model, model.tokenizer, tokens, range(n), [max_tokens] * n, ends=model.ends, sampling=sampling)
    return [completion.text for completion in done]


def chat(text: str) -> list[Message]:
    return [Message("user", text)]


PROMPTS = [chat("a"), chat("for (int i = 0; i < n; i++)"), chat("Write a faster kernel, please. " * 3), chat("b = c;")] * 2


def workers_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"local_worker" in command and fields[0] != "Z" and int(fields[1]) == parent:
                found.append(int(folder.name))
    return found


def thread_states(process: int) -> set[str]:
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{process}/task").iterdir()}


def newest_worker(known: list[int]) -> int:
    (process,) = set(workers_of(os.getpid())) - set(known)
    return process


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(process: int, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


# --- what it says -----------------------------------------------------------------------------------------------------


def test_same_seed_gives_the_same_reply_whatever_the_batch(model: LocalGenerator) -> None:
    seeds = list(range(100, 108))
    together = model.generate(PROMPTS, seeds, max_tokens=100)
    alone = [model.generate([p], [s], max_tokens=100)[0] for p, s in zip(PROMPTS, seeds, strict=True)]
    shuffled = model.generate(PROMPTS[::-1], seeds[::-1], max_tokens=100)[::-1]
    assert [r.text for r in together] == [r.text for r in alone] == [r.text for r in shuffled]
    assert [r.n_prompt_tokens for r in together] == [r.n_prompt_tokens for r in alone]
    # Rows that end early leave the batch; without one the test would not see a mistake there.
    assert len({r.n_reply_tokens for r in together}) > 1


def test_other_seed_gives_another_reply(model: LocalGenerator) -> None:
    replies = model.generate([chat("a")] * 4, [1, 2, 3, 2**70], max_tokens=20)
    assert len({r.text for r in replies}) == 4


def test_greedy_replies_are_those_of_transformers(tiny: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    expected = []
    for prompt in PROMPTS[:4]:
        ids = tokenizer(f"<user>{prompt[0].content}</user><assistant>", add_special_tokens=False, return_tensors="pt")
        out = reference.generate(**ids, max_new_tokens=40, do_sample=False)
        expected.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    assert reply_texts(loaded(tiny), PROMPTS[:4], 40, Sampling(0.0, 1.0)) == expected


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.6)])
def test_tokens_are_drawn_with_the_model_s_probabilities(tiny: Path, temperature: float, top_p: float) -> None:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny).eval()
    prompt = tokenizer("acc += a")["input_ids"]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt])).logits[0, -1]
    mass = torch.softmax(logits / temperature, -1).double().numpy()
    order = np.argsort(-mass)
    n_kept = int((np.cumsum(mass[order]) - mass[order] < top_p).sum())
    expected = np.zeros_like(mass)
    expected[order[:n_kept]] = mass[order[:n_kept]] / mass[order[:n_kept]].sum()

    n = 4000
    sampling = Sampling(temperature, top_p)
    drawn = complete(reference, tokenizer, [prompt] * n, range(n), [1] * n, ends=frozenset(), sampling=sampling)
    counts = Counter(c.text for c in drawn)
    texts: Counter[str] = Counter()
    for token, share in enumerate(expected):
        texts[tokenizer.decode([token], skip_special_tokens=True)] += share
    assert {text for text, share in texts.items() if share == 0}.isdisjoint(counts)
    chi2 = sum((counts[text] - n * share) ** 2 / (n * share) for text, share in texts.items() if share > 0)
    degrees = sum(share > 0 for share in texts.values()) - 1
    # Five standard deviations of the statistic, and the seeds are fixed.
    assert chi2 < degrees + 5 * (2 * degrees) ** 0.5


def test_reply_ends_with_the_first_stop_in_it(tiny: Path) -> None:
    model = loaded(tiny)
    (whole,) = reply_texts(model, [chat("stop here")], 60, Sampling(1.0, 1.0))
    stops = (whole[30:33], whole[20:23])
    (stopped,) = reply_texts(model, [chat("stop here")], 60, Sampling(1.0, 1.0, stops))
    end = min(whole.index(stop) + len(stop) for stop in stops)
    assert stopped == whole[:end]
    assert len(stopped) < len(whole)


def test_prompt_that_fills_the_context_fails_alone(model: LocalGenerator) -> None:
    replies = model.generate([chat("a"), chat("b" * 400), chat("c")], [1, 2, 3], max_tokens=10)
    assert [r.error is None for r in replies] == [True, False, True]
    assert replies[1].error is not None
    assert f"context of {CONTEXT} tokens" in replies[1].error
    assert replies[1].text == ""
    assert replies[1].n_prompt_tokens > CONTEXT


def test_reply_is_cut_where_the_context_ends(model: LocalGenerator) -> None:
    reply = next(
        reply
        for seed in range(20)
        for reply in model.generate([chat("x y " * 40)], [seed], max_tokens=10_000)
        if reply.n_prompt_tokens + reply.n_reply_tokens == CONTEXT
    )
    assert reply.error is None


def test_smaller_context_can_be_asked_for(tiny: Path) -> None:
    assert loaded(tiny).context_tokens == CONTEXT
    assert loaded(tiny, context_tokens=30).context_tokens == 30
    assert loaded(tiny, context_tokens=10**6).context_tokens == CONTEXT


def test_tokens_are_counted_as_the_model_counts_them(tiny: Path, model: LocalGenerator) -> None:
    from tokenizers import Tokenizer

    text = "for (int i = 0; i < n; i++) β += a[i];"
    expected = len(Tokenizer.from_file(str(tiny / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    assert model.count_tokens(text) == expected
    reply = model.generate([chat(text)], [0], max_tokens=1)[0]
    assert reply.n_prompt_tokens == model.count_tokens(f"<user>{text}</user><assistant>")
    started = time.monotonic()
    model.count_tokens(text * 100)
    assert time.monotonic() - started < 0.5


def test_tokens_are_counted_while_the_model_stands_still(model: LocalGenerator) -> None:
    model.count_tokens("a")
    model.pause()
    try:
        assert model.count_tokens("int") > 0
    finally:
        model.resume()


def test_text_is_counted_from_above_where_the_tokenizer_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(LocalGenerator, "_introduced", lambda self: {"tokenizer": None})
    with LocalGenerator(tiny, threads=1) as generator:
        assert generator.count_tokens("int \ud800") == 4


def test_a_warm_model_is_loaded_and_has_answered(tiny: Path) -> None:
    with LocalGenerator(tiny, threads=1) as generator:
        assert generator.warm() is None
        started = time.monotonic()
        assert generator.count_tokens("int") > 0
        assert generator.generate([chat("a")], [1], max_tokens=1)[0].error is None
        assert time.monotonic() - started < 1


def test_warming_a_model_that_does_not_load_is_an_error(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    shutil.copytree(tiny, path)
    (path / "tokenizer.json").write_text("{")
    with LocalGenerator(path, threads=1) as generator, pytest.raises(ModelError, match="does not load"):
        generator.warm()


def test_card_that_is_not_there_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=r"no card to run on.*try: --set generator\.device=cpu"):
        loaded(tiny, device="cuda")


def test_model_without_template_gets_plain_headings(tmp_path: Path) -> None:
    tokenizer = loaded(save(tmp_path / "plain", template=None)).tokenizer
    tokens = tokenize(tokenizer, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi.\n"}])
    assert tokenizer.decode(tokens) == "### System\nBe brief.\n\n### User\nHi.\n\n### Assistant\n"


def test_template_that_refuses_the_system_role_gets_it_with_the_user_s(tmp_path: Path) -> None:
    tokenizer = loaded(save(tmp_path / "strict", template=USER_ONLY)).tokenizer
    tokens = tokenize(tokenizer, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}])
    assert tokenizer.decode(tokens) == "<user>Be brief.\n\nHi.</user><assistant>"


def test_no_prompts_no_replies_and_bad_arguments(model: LocalGenerator) -> None:
    assert model.generate([], [], max_tokens=4) == ()
    with pytest.raises(ValueError, match="seed"):
        model.generate([chat("a")], [], max_tokens=4)
    with pytest.raises(ValueError, match="token"):
        model.generate([chat("a")], [1], max_tokens=0)


def test_name_is_the_directory_s(model: LocalGenerator) -> None:
    assert model.name == "tiny-llama"
    assert "tiny-llama answers: float32 on cpu, 1 threads" in model.check()
    assert model.note is None


# --- its process ------------------------------------------------------------------------------------------------------


def test_main_process_does_not_import_torch_and_does_not_wait(tiny: Path, tmp_path: Path) -> None:
    # A file named like the library, in the folder the user happens to stand in, must not be taken for it.
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    program = f"""
import sys, time
from mutators.generators import LocalGenerator
from evo_l2.contracts import Message
started = time.monotonic()
generator = LocalGenerator({str(tiny)!r}, threads=1)
assert time.monotonic() - started < 1, 'the constructor waited'
reply = generator.generate([[Message("user", "a")]], [1], max_tokens=5)[0]
assert reply.error is None, reply
generator.count_tokens("a")
generator.close()
loaded = [name for name in ("torch", "transformers", "peft", "openai") if name in sys.modules]
assert not loaded, loaded
"""
    sys_path = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": sys_path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_worker_is_offline_and_gives_way(worker: int) -> None:
    pairs = Path(f"/proc/{worker}/environ").read_text().split("\0")
    environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert os.getpriority(os.PRIO_PROCESS, worker) >= 10
    assert os.getpgid(worker) == worker
    assert int(Path(f"/proc/{worker}/oom_score_adj").read_text()) == 500


def test_pause_stops_every_thread_until_resume(model: LocalGenerator, worker: int) -> None:
    replies: list[Any] = []
    thread = threading.Thread(target=lambda: replies.extend(model.generate(PROMPTS, range(8), max_tokens=200)))
    thread.start()
    time.sleep(0.05)
    model.pause()
    try:
        assert thread_states(worker) == {"T"}
        thread.join(1.0)
        assert thread.is_alive()
    finally:
        model.resume()
    thread.join(60)
    assert len(replies) == 8
    assert all(reply.error is None for reply in replies)


def test_pause_holds_while_the_model_loads(tiny: Path) -> None:
    known = workers_of(os.getpid())
    with LocalGenerator(tiny, threads=1) as generator:
        process = newest_worker(known)
        generator.pause()
        assert thread_states(process) == {"T"}


@pytest.mark.slow
def test_dead_worker_costs_one_call_and_is_replaced(tiny: Path) -> None:
    known = workers_of(os.getpid())
    made: list[LocalGenerator] = []
    # Made in a thread that ends, which must not take the worker with it.
    thread = threading.Thread(target=lambda: made.append(LocalGenerator(tiny, threads=1)))
    thread.start()
    thread.join()
    with made[0] as generator:
        assert generator.generate([chat("a")], [1], max_tokens=3)[0].error is None
        first = newest_worker(known)
        # It stands still when it is shot, so that it cannot have answered.
        generator.pause()
        threading.Timer(0.2, os.kill, (first, signal.SIGKILL)).start()
        lost = generator.generate(PROMPTS, range(8), max_tokens=100)
        assert [reply.text for reply in lost] == [""] * 8
        assert all(reply.error is not None and "SIGKILL" in reply.error for reply in lost)
        generator.resume()
        assert generator.generate([chat("a")], [1], max_tokens=3)[0].error is None
        assert newest_worker(known) != first


@pytest.mark.slow
def test_worker_that_dies_while_loading_can_be_tried_again_and_a_silent_one_is_ended(tiny: Path) -> None:
    known = workers_of(os.getpid())
    with LocalGenerator(tiny, threads=1, silence_s=2.0) as generator:
        os.kill(newest_worker(known), signal.SIGKILL)
        with pytest.raises(ModelError, match="ended while it was loading"):
            generator.count_tokens("a")
        assert generator.generate([chat("a")], [1], max_tokens=3)[0].error is None
        process = newest_worker(known)
        os.kill(process, signal.SIGSTOP)
        reply = generator.generate([chat("a")], [1], max_tokens=3)[0]
        assert reply.error is not None
        assert "said nothing for 2 s" in reply.error
        assert not is_alive(process)


def test_close_ends_the_process_even_paused_and_may_be_called_twice(tiny: Path) -> None:
    known = workers_of(os.getpid())
    generator = LocalGenerator(tiny, threads=1)
    process = newest_worker(known)
    generator.pause()
    generator.close()
    generator.close()
    assert not is_alive(process)
    with pytest.raises(ModelError, match="closed"):
        generator.generate([chat("a")], [1], max_tokens=1)


PARENT = """
import sys, time
from mutators.generators import LocalGenerator
generator = LocalGenerator(sys.argv[1], threads=1)
if sys.argv[2] == "paused":
    generator.pause()
elif sys.argv[2] == "loaded":
    generator.count_tokens("a")
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("moment", ["loading", "paused", "loaded"])
def test_killed_parent_leaves_no_worker(tiny: Path, moment: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tiny), moment], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        (worker,) = workers_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    assert wait_until_gone(worker)


# --- files that are no model ------------------------------------------------------------------------------------------


def refusal(model: Path, **options: Any) -> str:
    """The error's one line, whether the constructor or the first use finds the fault."""
    with pytest.raises(ModelError) as caught, LocalGenerator(model, threads=1, **options) as generator:
        generator.generate([chat("a")], [1], max_tokens=1)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 800
    return line


def test_path_with_nothing_there(tmp_path: Path) -> None:
    assert "nothing there" in refusal(tmp_path / "absent")


def test_directory_without_configuration_or_weights(tmp_path: Path) -> None:
    assert "expected config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "expected *.safetensors" in refusal(tmp_path)


def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 not a model")
    assert "a file that is no GGUF" in refusal(path)


def test_gguf_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert f"the model {path} does not load" in refusal(path)


def test_configuration_of_a_deeper_model_is_not_filled_up_at_random(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep"
    shutil.copytree(tiny, path)
    configuration = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**configuration, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="is not complete"):
        loaded(path)


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected at most 100 tokens"):
        loaded(save(tmp_path / "small", vocabulary=100))


@pytest.mark.slow
def test_truncated_weights_are_refused_and_cost_no_second_start(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    shutil.copytree(tiny, path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with LocalGenerator(path, threads=1) as generator:
        with pytest.raises(ModelError, match=f"the model {path} does not load"):
            generator.generate([chat("a")], [1], max_tokens=1)
        started = time.monotonic()
        with pytest.raises(ModelError, match=f"the model {path} does not load"):
            generator.generate([chat("a")], [1], max_tokens=1)
        assert time.monotonic() - started < 1


def test_embedded_model_is_unpacked_once_for_all_environments_that_hold_it(tmp_path: Path) -> None:
    for name, data in (("a", b"GGUF1"), ("b", b"GGUF1"), ("c", b"GGUF2")):
        (tmp_path / name).write_bytes(data)
    os.utime(tmp_path / "b", ns=(1, 1))
    keys = [embedded.conversion_key(tmp_path / name) for name in "abc"]
    assert keys[0] == keys[1] != keys[2]


# --- adapters ---------------------------------------------------------------------------------------------------------


def adapter(base: Path, path: Path) -> Path:
    """A LoRA adapter with random weights of visible size."""
    import torch
    import transformers

    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 1)
    adapted.save_pretrained(path)
    return path


def test_adapter_speaks_and_is_named(tiny: Path, tmp_path: Path) -> None:
    import transformers

    path = adapter(tiny, tmp_path / "gen3")
    peft = pytest.importorskip("peft")
    plain = loaded(tiny)
    ids = plain.tokenizer("<user>a</user><assistant>", add_special_tokens=False, return_tensors="pt")
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    out = peft.PeftModel.from_pretrained(base, str(path)).eval().generate(**ids, max_new_tokens=20, do_sample=False)
    expected = plain.tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert reply_texts(plain, [chat("a")], 20, Sampling(0.0, 1.0)) != [expected]
    assert reply_texts(loaded(tiny, adapter=str(path)), [chat("a")], 20, Sampling(0.0, 1.0)) == [expected]
    with LocalGenerator(tiny, adapter=path, threads=1) as generator:
        assert generator.name == "tiny-llama+gen3"


@pytest.mark.parametrize("changes", [{"width": 64}, {"layers": 1}, {"layers": 3}])
def test_adapter_of_another_model_is_refused(tiny: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    foreign = adapter(save(tmp_path / "other", **changes), tmp_path / "foreign")
    with pytest.raises(ModelError, match="does not fit"):
        loaded(tiny, adapter=str(foreign))


def test_directory_that_is_no_adapter(tiny: Path, tmp_path: Path) -> None:
    assert "expected adapter_config.json" in refusal(tiny, adapter=tmp_path)
