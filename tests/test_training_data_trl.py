"""trl's trainers take the rows as they are loaded and train one step on them, with a model of a few thousand weights."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from archive import Store
from archive.training_data import Options, export_training_data
from experiments.rendering import PromptRenderer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="takes long: EVO_L2_SOAK=1"),
]


def _maker():
    path = Path(__file__).parent / "test_training_data.py"
    spec = importlib.util.spec_from_file_location("training_data_cases", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def offline():
    """Before the packages are imported: nothing is looked up in the network."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setenv(name, "1")
        pytest.importorskip("trl")
        yield


@pytest.fixture(scope="module")
def data(offline, tmp_path_factory):
    """By form, the training rows of one archive."""
    from datasets import load_dataset

    folder = tmp_path_factory.mktemp("rows")
    with Store.open(_maker().fill(folder / "a.db", 7, 60)) as store:
        for form in ("sft", "dpo", "kto", "grpo", "contrastive"):
            export_training_data(store, folder / form, Options(form), PromptRenderer(4096))
    return {form: load_dataset(str(folder / form), cache_dir=str(folder / "cache"), split="train")
            for form in ("sft", "dpo", "kto", "grpo", "contrastive")}  # fmt: skip


@pytest.fixture(scope="module")
def model_folder(data, tmp_path_factory):
    """A Llama without sense and a tokenizer of 300 words, in a folder: two trainers load a second copy by its path."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<pad>", "<eos>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    words.train_from_iterator([row["prompt"][1]["content"] for row in data["sft"]], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8192, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def settings(folder: Path, **more):
    return {
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True,
        "save_strategy": "no", "disable_tqdm": True, "bf16": False, "gradient_checkpointing": False, **more,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["sft", "contrastive"])
def test_sft_takes_prompts_and_completions(form, data, model_folder, tmp_path):
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(model_folder, args=SFTConfig(**settings(tmp_path, max_length=6000)), train_dataset=data[form])
    assert trainer.train().global_step == 1
    assert len(trainer.train_dataset) == len(data[form])


def test_dpo_takes_pairs(data, model_folder, tmp_path):
    from trl import DPOConfig, DPOTrainer

    trainer = DPOTrainer(model_folder, args=DPOConfig(**settings(tmp_path, max_length=6000)), train_dataset=data["dpo"])
    assert trainer.train().global_step == 1


def test_kto_takes_labels(data, model_folder, tmp_path):
    from trl import KTOConfig, KTOTrainer

    trainer = KTOTrainer(model_folder, args=KTOConfig(**settings(tmp_path, max_length=6000)), train_dataset=data["kto"])
    assert trainer.train().global_step == 1


def test_grpo_hands_the_ground_truth_to_the_reward_function(data, model_folder, tmp_path):
    import json

    from trl import GRPOConfig, GRPOTrainer

    seen = []

    def judge(completions, ground_truth, known_rewards, **columns):
        seen.extend(json.loads(text)["parents"][0]["digest"] for text in ground_truth)
        return [float(len(reply[0]["content"]) % 7) for reply in completions]

    args = GRPOConfig(**settings(tmp_path, max_completion_length=8, num_generations=2))
    trainer = GRPOTrainer(model_folder, reward_funcs=judge, args=args, train_dataset=data["grpo"])
    assert trainer.train().global_step == 1
    known = {json.loads(text)["parents"][0]["digest"] for text in data["grpo"]["ground_truth"]}
    assert seen
    assert set(seen) <= known
