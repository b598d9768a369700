"""Batches without padding have the loss and the gradients of whole ones, for every model of the list."""

import copy
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, BertConfig, BertForQuestionAnswering, GPT2Config, GPT2LMHeadModel
from transformers.models.auto import modeling_auto as auto

import cpudist
from cpudist.errors import UserError
from cpudist.optimization import padding

pytestmark = pytest.mark.versions

WIDTH, KINDS, PAD = 160, 5, 1
LENGTHS = (20, 70, 41)
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256, "pooler_hidden_size": 32}
SIZES |= {"embedding_size": 32, "bos_token_id": 2, "eos_token_id": 3, "local_attention": 8, "sliding_window": 8}
MAPPINGS = {
    "ForMaskedLM": auto.MODEL_FOR_MASKED_LM_MAPPING,
    "ForCausalLM": auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    padding.POOLED: auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    padding.TOKENS: auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}


def _model(name: str, head: str, attention: str) -> Any:
    config = AutoConfig.for_model(name)
    for key, value in {**SIZES, "num_labels": KINDS, "pad_token_id": PAD}.items():
        if hasattr(config, key) or key in ("num_labels", "pad_token_id"):
            setattr(config, key, value)
    for key, value in vars(config).items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    config.classifier_dropout, config._attn_implementation = 0.0, attention
    torch.manual_seed(0)
    return MAPPINGS[head][type(config)](config).train()


def _batch(pooled: bool = False, left: bool = False) -> dict[str, torch.Tensor]:
    """Rows of three lengths; a third of the tokens, and the first of each row, has no target."""
    torch.manual_seed(1)
    ids, labels = (torch.full((len(LENGTHS), WIDTH), value) for value in (PAD, -100))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        own = slice(WIDTH - length, WIDTH) if left else slice(length)
        ids[row, own], mask[row, own] = torch.randint(4, 64, (length,)), 1
        labels[row, own] = torch.randint(KINDS, (length,)).masked_fill(torch.rand(length) < 0.3, -100)
        labels[row, own.start or 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(LENGTHS)) if pooled else labels}


def _gradients(model: Any, batch: Any) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


KNOWN = [
    (name, head)
    for name in sorted(padding.HEADS)
    for head, mapping in MAPPINGS.items()
    if f"x{head}".endswith(padding.HEADS[name]) and type(AutoConfig.for_model(name)) in mapping
]


@pytest.mark.parametrize(("name", "head"), KNOWN)
def test_the_loss_stays_the_same(name: str, head: str) -> None:
    for attention in ("sdpa", "eager"):
        if attention == "sdpa" and not MAPPINGS[head][type(AutoConfig.for_model(name))]._supports_sdpa:
            continue
        model = _model(name, head, attention)
        assert padding.why_not(model) is None
        for left in (False, True) if name in padding.DECODERS else (False,):
            batch = _batch(head == padding.POOLED, left)
            cut = padding.trimmed(batch, model)
            assert cut["input_ids"].shape[1] == 96 < batch["input_ids"].shape[1]
            for one, other in zip(_gradients(model, cut), _gradients(model, batch), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()) + 1e-7)


def test_what_counts_stays() -> None:
    model, batch = _model("gpt2", "ForCausalLM", "sdpa"), _batch(left=True)
    assert padding.columns(batch, model) == slice(64, 160)
    given = {**batch, "position_ids": (torch.arange(WIDTH) - 90).clamp(0).expand(3, -1)}
    cut = padding.trimmed(given, model)
    assert torch.equal(cut["position_ids"], given["position_ids"][:, 64:])
    torch.testing.assert_close(_gradients(model, cut), _gradients(model, given), rtol=1e-4, atol=1e-6)
    assert batch["input_ids"].shape[1] == WIDTH, "the caller's batch is not changed"
    first = copy.deepcopy(batch)
    first["labels"][0, WIDTH - LENGTHS[0]] = 3  # it is predicted from padding
    late = _batch()
    late["labels"][1, 120] = 3  # a target on padding
    assert padding.columns(first, model) is None
    assert padding.columns(late, model) == slice(0, 128)
    for unknown in ({"other": batch["labels"]}, {"attention_mask": batch["attention_mask"][:, None]}, {"labels": None}):
        assert padding.columns({**batch, **unknown}, model) is None
    pooled = _model("bert", padding.POOLED, "sdpa")
    wide = {**_batch(pooled=True), "labels": torch.rand(3, WIDTH)}  # as many labels as columns
    assert padding.trimmed(wide, pooled)["labels"] is wide["labels"]
    assert padding.trimmed(wide, pooled)["input_ids"].shape[1] == 96


class Distilled(GPT2LMHeadModel):
    """A model of the user."""


def test_other_losses_are_refused(alone: None) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    known = _model("gpt2", "ForCausalLM", "sdpa")
    batches = cpudist.batches([_batch()] * 2, trim=DistributedDataParallel(known))
    assert [len(batches), *(batch["labels"].shape[1] for batch in batches)] == [2, 96, 96]
    for refused in (
        BertForQuestionAnswering(BertConfig(**small)),
        Distilled(GPT2Config(n_layer=1, n_embd=16, n_head=2)),
    ):
        with pytest.raises(UserError, match=f"trim: the loss of {type(refused).__name__} may depend on padding"):
            cpudist.batches([], trim=refused)
    known.config.output_hidden_states = True
    with pytest.raises(UserError, match="output_hidden_states shows padding"):
        cpudist.batches([], trim=known)
    known.config.output_hidden_states = False
    with pytest.raises(UserError, match="attention_mask"):
        list(cpudist.batches([torch.ones(2)], trim=known))
