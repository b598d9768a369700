"""What the xla backend decides before torch_xla is there: versions, devices, meshes and partition specs."""

from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist import backends
from cpudist.backends.xla import gpu, mesh, partition, pjrt
from cpudist.errors import UserError


@pytest.mark.parametrize(
    ("torch", "torch_xla", "says"),
    [
        ("2.8.0+cu128", "2.8.1", None),
        ("2.9.1", "2.9.0", None),
        ("2.8.0", None, "torch_xla is not installed: pip install torch_xla==2.8.1"),
        ("2.9.0", None, "torch_xla is not installed: pip install torch_xla==2.9.0"),
        ("2.9.0", "2.8.1", "torch_xla 2.8.1 is not for torch 2.9.0: pip install torch_xla==2.9.0"),
        ("2.13.0", "2.9.0", "there is no torch_xla for torch 2.13.0; PyTorch/XLA ended with 2.9: pip install torch=="),
    ],
)
def test_versions_that_do_not_fit_are_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, torch: str, torch_xla: str | None, says: str | None
) -> None:
    def version(package: str) -> str:
        found = {"torch": torch, "torch_xla": torch_xla}[package]
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr(pjrt, "version", version)
    found = pjrt.missing()
    assert found == says if says is None else found is not None and found.startswith(says)


@pytest.mark.parametrize(
    ("asked", "variables", "there", "lacks", "says"),
    [
        ("cpu", {}, "", None, "cpu: --device"),
        ("tpu", {"PJRT_DEVICE": "TPU"}, "", None, "tpu: --device"),
        (None, {"PJRT_DEVICE": "CUDA"}, "", None, "cuda: PJRT_DEVICE says so"),
        (None, {"PJRT_DEVICE": "GPU"}, "", None, "cuda: PJRT_DEVICE says so"),
        (None, {}, "", None, "cpu: PJRT_DEVICE and --device are not set"),
        (None, {}, "/dev/vfio/0", None, "tpu: "),
        (None, {}, "/dev/nvidia0", None, "cuda: "),
        (None, {}, "/dev/nvidia0", "no driver", "cpu: "),
        ("cpu", {"PJRT_DEVICE": "TPU"}, "", None, "--device cpu contradicts PJRT_DEVICE=TPU"),
        (None, {"PJRT_DEVICE": "NEURON"}, "", None, "PJRT_DEVICE=NEURON is not known"),
    ],
)
def test_the_device_is_what_was_said_or_what_is_there_and_has_a_driver(
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
    variables: dict[str, str],
    there: str,
    lacks: str | None,
    says: str,
) -> None:
    """The devices' files are made up: there is neither here."""
    monkeypatch.setattr(pjrt, "glob", lambda pattern: [name for name in [there] if fnmatch(name, pattern)])
    monkeypatch.setattr(pjrt, "lacks", lambda kind: lacks)
    try:
        choice = pjrt.choose(asked, variables)
        found = f"{choice.kind}: {choice.because}"
    except UserError as error:
        found = str(error)
    assert found.startswith(says)


@pytest.mark.parametrize(
    ("plugin", "torch_xla", "toolkit", "devices", "says"),
    [
        (None, "2.8.1", "/cuda", 1, "jax-cuda12-pjrt, which drives GPUs, is not installed: pip install"),
        ("0.7.1", "2.8.1", "/cuda", 1, "jax-cuda12-pjrt 0.7.1 does not fit torch_xla 2.8.1: pip install"),
        ("0.6.2", "2.9.0", "/cuda", 1, "jax-cuda12-pjrt 0.6.2 does not fit torch_xla 2.9.0: pip install"),
        ("0.6.2", "2.8.1", None, 1, "there is no ptxas, which compiles for GPUs: pip install"),
        ("0.6.2", "2.8.1", "/cuda", None, "there is no NVIDIA driver (libcuda.so.1); install it"),
        ("0.6.2", "2.8.1", "/cuda", 0, "the NVIDIA driver finds no GPU; look at nvidia-smi"),
        ("0.6.2", "2.8.1", "/cuda", 1, None),
    ],
)
def test_what_a_gpu_lacks_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    plugin: str | None,
    torch_xla: str,
    toolkit: str | None,
    devices: int | None,
    says: str | None,
) -> None:
    """There are neither the packages nor the driver here."""

    def version(package: str) -> str:
        found = {"jax-cuda12-pjrt": plugin, "torch_xla": torch_xla}[package]
        if found is None:
            raise PackageNotFoundError(package)
        return found

    def driver(name: str) -> SimpleNamespace:
        def count(place: Any) -> int:
            place._obj.value = devices
            return 0

        if devices is None:
            raise OSError(name)
        return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)

    monkeypatch.setattr(gpu, "version", version)
    monkeypatch.setattr(gpu, "toolkit", lambda: toolkit)
    monkeypatch.setattr(gpu.ctypes, "CDLL", driver)
    found = pjrt.lacks("cuda")
    assert found == says if says is None else found is not None and found.startswith(says)


def test_the_runtimes_variables_do_not_make_another_program() -> None:
    for variables in ({}, {"XLA_USE_SPMD": "0"}):
        pjrt.check_variables(variables, 2, meshed=False)
    pjrt.check_variables({"XLA_USE_SPMD": "1"}, 1, meshed=False)
    pjrt.check_variables({"XLA_USE_SPMD": "1"}, 2, meshed=True)
    with pytest.raises(UserError, match=r"XLA_USE_SPMD makes one program .* this job has 2 ranks, .*; leave that out"):
        pjrt.check_variables({"XLA_USE_SPMD": "1"}, 2, meshed=False)
    with pytest.raises(UserError, match=r"XLA_AUTO_SPMD lets the compiler choose .* or --mesh, out"):
        pjrt.check_variables({"XLA_AUTO_SPMD": "1"}, 1, meshed=True)


@pytest.mark.parametrize(
    ("variables", "level", "says"),
    [
        ({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}, "ok", "; CPU_NUM_DEVICES=4"),
        ({"PJRT_DEVICE": "METAL"}, "warning", "--backend xla would fail: PJRT_DEVICE=METAL is not known here"),
        ({"PJRT_DEVICE": "CUDA"}, "warning", "computes on CUDA: PJRT_DEVICE says so"),
    ],
)
def test_doctor_says_what_would_be_computed_on(variables: dict[str, str], level: str, says: str) -> None:
    ((found, message, remedy),) = pjrt.findings(variables)
    assert (found, bool(remedy)) == (level, level != "ok")
    assert says in message


def test_options_of_xla_are_refused_elsewhere() -> None:
    with pytest.raises(UserError, match="the backend gloo takes no --show-sharding"):
        backends.get("gloo")().configure(show_sharding=True)
    backends.make("gloo", {"mesh": None, "device": None})  # a program for all backends passes None
    with pytest.raises(UserError, match="--show-sharding has no effect without --mesh; give that, too"):
        backends.make("xla", {"show_sharding": True})
    with pytest.raises(UserError, match="--device gpu is not known; give the backend xla one of cpu, cuda, tpu"):
        backends.make("xla", {"device": "gpu"})


@pytest.mark.parametrize(
    ("backend", "options", "kept", "says"),
    [
        ("gloo", {"mesh": "data=2", "device": None}, [], "cpudist: mesh has no effect on the backend gloo"),
        ("auto", {"mesh": "data=2", "bogus": 1}, ["bogus"], "mesh has no effect on the backend ccl"),
        ("xla", {"show_sharding": True, "device": "cpu"}, ["device"], "show_sharding has no effect on the backend xla"),
        ("xla", {"show_sharding": True, "mesh": "data=2"}, ["show_sharding", "mesh"], ""),
    ],
)
def test_in_code_options_that_do_not_apply_have_no_effect(
    capsys: pytest.CaptureFixture[str], backend: str, options: dict[str, Any], kept: list[str], says: str
) -> None:
    assert backends.applicable(backend, options, True) == {name: options[name] for name in kept}
    said = capsys.readouterr().err
    assert (says in said) if says else not said
    backends.applicable(backend, options, False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "devices", "sizes"),
    [
        ("data=4", 4, {"data": 4}),
        ("data=2, model=2", 4, {"data": 2, "model": 2}),
        ("data=-1,model=2", 8, {"data": 4, "model": 2}),
    ],
)
def test_meshes(text: str, devices: int, sizes: dict[str, int]) -> None:
    fitted = mesh.fit(mesh.parse(text), devices)
    assert fitted == sizes
    assert mesh.fit(mesh.parse(mesh.text_of(fitted)), devices) == fitted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data", "'data' is no axis"),
        ("data=0", "'data=0' is no axis"),
        ("data=2x2", "'data=2x2' is no axis"),
        ("data=2,data=2", "names an axis twice"),
        ("data=-1,model=-1", "only one axis"),
        ("data=3", "--mesh data=3 needs 3 devices, and there are 4"),
        ("data=3,model=-1", "needs a multiple of 3 devices, and there are 4"),
    ],
)
def test_meshes_that_are_none(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        mesh.fit(mesh.parse(text), 4)


SIZES = {"data": 2, "model": 4}


def test_a_batch_that_does_not_divide_evenly_is_named() -> None:
    assert partition.spec_of_batch((8, 6), ("data", "model"), SIZES) == (("data", "model"), None)
    says = r"a batch \(6 x 8\) does not divide evenly by \(data, model\) on the mesh data=2, model=4: 6 into 8 parts"
    with pytest.raises(UserError, match=says):
        partition.spec_of_batch((6, 8), ("data", "model"), SIZES)


@given(
    st.sampled_from(["h.0.attn.c_attn.weight", "h.0.mlp.c_proj.weight", "wte.weight", "x.embed.weight", "y.weight"]),
    st.lists(st.integers(1, 64), max_size=4),
    st.dictionaries(st.sampled_from(["data", "model", "fsdp"]), st.integers(1, 8)),
)
def test_the_table_fits_every_parameter(name: str, shape: list[int], sizes: dict[str, int]) -> None:
    spec = partition.spec_for(name, shape, sizes)
    assert len(spec) == len(shape)
    assert all(size % partition.parts(entry, sizes) == 0 for size, entry in zip(shape, spec, strict=True))
    names = [axis for entry in spec for axis in partition.names_in(entry)]
    assert len(set(names)) == len(names)
    assert {*names} <= sizes.keys() - {"data"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("transformer.h.3.attn.c_proj.weight", "transformer.h.3.attn.c_attn.weight"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"),
        ("gpt_neox.layers.0.mlp.dense_h_to_4h.weight", "gpt_neox.layers.0.mlp.dense_4h_to_h.weight"),
        ("bert.encoder.layer.0.intermediate.dense.weight", "bert.encoder.layer.0.output.dense.weight"),
        ("distilbert.transformer.layer.0.ffn.lin1.weight", "x.layer.0.ffn.lin2.weight"),
        ("vit.embeddings.patch_embeddings.projection.weight", "vit.layer.0.output.dense.weight"),
        ("layers.0.linear1.weight", "layers.0.linear2.weight"),
    ],
)
def test_the_table_cuts_where_megatron_does(first: str, second: str) -> None:
    """The first of two layers by what comes out, the second by what goes in; GPT-2 holds them the other way round."""
    assert partition.spec_for(first, (8, 24), {"model": 2}) == (("model",), None)
    assert partition.spec_for(second, (24, 8), {"model": 2}) == (None, ("model",))
    assert partition.spec_for(second, (24, 7), {"model": 2}) == (None, None), "does not divide"


def test_the_loop_is_the_one_that_the_readme_shows() -> None:
    root = Path(__file__).parents[3]
    program = (root / "examples" / "one_program.py").read_text(encoding="utf-8")
    assert program.partition("import sys\n")[2] in (root / "README.md").read_text(encoding="utf-8")
