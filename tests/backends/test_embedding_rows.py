"""Tied embeddings whose part of the gradient is averaged as rows: which ones, and when; on one rank."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertForMaskedLM

import cpudist
from cpudist import job

TOKENS = torch.tensor([[1, 2, 3], [3, 0, 5]])


class Language(torch.nn.Module):
    """A model whose embedding and output layer share a weight."""

    def __init__(self, embedding: torch.nn.Embedding | None = None, tie: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = embedding or torch.nn.Embedding(20, 4, padding_idx=0)
        self.hidden = torch.nn.Linear(4, 4)
        self.output = torch.nn.Linear(4, 20)
        if tie:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, head: bool = True) -> torch.Tensor:
        hidden = self.hidden(self.embedding(tokens)).tanh()
        return self.output(hidden) if head else hidden


@pytest.fixture
def hosts(alone: None) -> None:
    """A job that believes to be on two hosts."""
    running = job.require()
    running.world = replace(running.world, node_count=2)
    running.communication.world = running.world


def loss(model: torch.nn.Module, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    return cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def used(model: torch.nn.Module) -> list[str]:
    model(TOKENS[:1])
    found = job.require().record.as_dict("running")["gradients"]
    names: list[str] = found.get("embedding_rows", [])
    return names


def same_gradients(model: torch.nn.Module, backward: Callable[[torch.nn.Module], None]) -> None:
    """Compare the gradients of a model in DDP with those of its copy outside."""
    plain = copy.deepcopy(model.module)
    backward(model)
    backward(plain)
    for expected, found in zip(plain.parameters(), model.module.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.versions
@pytest.mark.parametrize("unused", [False, True])
def test_the_gradients_are_those_of_the_whole_graph(hosts: None, unused: bool) -> None:
    """On several ranks, and over several batches: ccl/checks/compressed.py."""
    model = cpudist.wrap(Language(), find_unused_parameters=unused)
    assert used(model) == ["embedding"]
    model.zero_grad()
    same_gradients(model, lambda model: (loss(model) + loss(model, TOKENS[:, :2])).backward())
    with torch.no_grad():
        model(TOKENS)
    again = loss(model)
    again.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="go back through a graph once only"):
        again.backward()


@pytest.mark.parametrize("unused", [False, True])
def test_a_pass_without_the_output_layer(hosts: None, unused: bool) -> None:
    """DDP gets a gradient of the weight nevertheless."""
    model = cpudist.wrap(Language(), find_unused_parameters=unused)
    model.module.output.bias.requires_grad_(unused)
    if not unused:
        model = cpudist.wrap(model.module)
    for _ in range(3):
        model.zero_grad()
        same_gradients(model, lambda model: model(TOKENS, head=False).square().sum().backward())


@pytest.mark.versions
def test_a_tied_model_of_transformers_is_found(hosts: None) -> None:
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = cpudist.wrap(BertForMaskedLM(config).eval())
    assert used(model) == ["bert.embeddings.word_embeddings"]
    same_gradients(model, lambda model: model(TOKENS).logits.square().mean().backward())


def test_a_checkpointed_embedding_and_low_precision(hosts: None) -> None:
    class Checkpointed(Language):
        def forward(self, tokens: torch.Tensor, head: bool = True) -> torch.Tensor:
            hidden = checkpoint(lambda tokens: self.embedding(tokens).square(), tokens, use_reentrant=False)
            return self.output(self.hidden(hidden))

    same_gradients(cpudist.wrap(Checkpointed()), lambda model: loss(model).backward())
    same_gradients(cpudist.wrap(Language().bfloat16()), lambda model: loss(model).backward())


def test_a_copy_looks_up_as_before(hosts: None) -> None:
    model = cpudist.wrap(Language())
    for other in (copy.deepcopy(model.module), pickle.loads(pickle.dumps(model.module))):
        loss(other).backward()
        assert float(other.embedding.weight.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    "embedding",
    [
        torch.nn.Embedding(20, 4, max_norm=1.0),
        torch.nn.Embedding(20, 4, scale_grad_by_freq=True),
        type("Scaled", (torch.nn.Embedding,), {"forward": lambda self, x: 2 * torch.nn.Embedding.forward(self, x)})(
            20, 4
        ),
    ],
)
def test_embeddings_that_are_left_alone(hosts: None, embedding: torch.nn.Embedding) -> None:
    assert used(cpudist.wrap(Language(embedding))) == []


def test_models_that_are_left_alone(hosts: None) -> None:
    assert used(cpudist.wrap(Language(tie=False))) == []
    assert used(cpudist.wrap(Language(), static_graph=True)) == []
    hooked = cpudist.wrap(Language())
    hooked.register_comm_hook(None, allreduce_hook)  # may do anything to the dense part
    outputs: list[torch.Tensor] = []
    hooked.module.embedding.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    hooked(TOKENS)
    assert type(outputs[0].grad_fn).__name__ == "EmbeddingBackward0"
