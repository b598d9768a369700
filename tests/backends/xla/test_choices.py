"""What the xla backend decides before torch_xla is there: versions, devices, meshes and partition specs."""

from contextlib import nullcontext
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest

from cpudist import backends
from cpudist.backends.xla import mesh, pjrt
from cpudist.errors import UserError
from cpudist.job.job_options import JobOptions


def _install(monkeypatch: pytest.MonkeyPatch, module: Any, **versions: str | None) -> None:
    """Make these versions of packages the installed ones for `module`; None: the package is not installed."""

    def version(package: str) -> str:
        if (found := versions[package.replace("-", "_")]) is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr(module, "version", version)


@pytest.mark.parametrize(
    ("torch", "torch_xla", "remedy"),
    [
        ("2.8.0+cu128", "2.8.1", None),
        ("2.8.0", None, "pip install torch_xla==2.8.1"),
        ("2.9.0", "2.8.1", "pip install torch_xla==2.9.0"),
        ("2.13.0", "2.9.0", "pip install torch==2.9.0 torch_xla==2.9.0"),
    ],
)
def test_versions_that_do_not_fit_are_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, torch: str, torch_xla: str | None, remedy: str | None
) -> None:
    _install(monkeypatch, pjrt, torch=torch, torch_xla=torch_xla)
    found = pjrt.missing()
    assert found is None if remedy is None else str(found).endswith(f": {remedy}")


@pytest.mark.parametrize(
    ("asked", "variables", "there", "lacks", "says"),
    [
        ("cpu", {}, "", "", "cpu: --device"),
        ("tpu", {"PJRT_DEVICE": "TPU"}, "", "", "tpu: --device"),
        ("", {"PJRT_DEVICE": "CUDA"}, "", "", "cuda: PJRT_DEVICE says so"),
        ("", {"PJRT_DEVICE": "GPU"}, "", "", "cuda: PJRT_DEVICE says so"),
        ("", {}, "", "", "cpu: PJRT_DEVICE and --device are not set"),
        ("", {}, "/dev/vfio/0", "", "tpu: "),
        ("", {}, "/dev/nvidia0", "", "cuda: "),
        ("", {}, "/dev/nvidia0", "no driver", "cpu: "),
        ("cpu", {"PJRT_DEVICE": "TPU"}, "", "", "--device cpu contradicts PJRT_DEVICE=TPU"),
        ("", {"PJRT_DEVICE": "NEURON"}, "", "", "PJRT_DEVICE=NEURON is not known"),
    ],
)
def test_the_device_is_what_was_said_or_what_is_there_and_has_a_driver(
    monkeypatch: pytest.MonkeyPatch, asked: str, variables: dict[str, str], there: str, lacks: str, says: str
) -> None:
    """The devices' files are made up: there is neither here."""
    monkeypatch.setattr(pjrt, "glob", lambda pattern: [name for name in [there] if fnmatch(name, pattern)])
    monkeypatch.setattr(pjrt, "lacks", lambda kind: lacks or None)
    try:
        choice = pjrt.choose(asked or None, variables)
        found = f"{choice.kind}: {choice.because}"
    except UserError as error:
        found = str(error)
    assert found.startswith(says)


# There are neither the packages nor the driver here.
@pytest.mark.parametrize(
    ("plugin", "torch_xla", "toolkit", "devices", "lacking"),
    [
        ("", "2.8.1", "/cuda", 1, "not installed: pip install"),
        ("0.7.1", "2.8.1", "/cuda", 1, "0.7.1 does not fit torch_xla 2.8.1"),
        ("0.6.2", "2.8.1", "", 1, "ptxas"),
        ("0.6.2", "2.8.1", "/cuda", -1, "libcuda.so.1"),
        ("0.6.2", "2.8.1", "/cuda", 0, "nvidia-smi"),
        ("0.6.2", "2.8.1", "/cuda", 1, ""),
    ],
)
def test_what_a_gpu_lacks_is_one_line(
    monkeypatch: pytest.MonkeyPatch, plugin: str, torch_xla: str, toolkit: str, devices: int, lacking: str
) -> None:
    def count(place: Any) -> int:
        place._obj.value = devices
        return 0

    def driver(name: str) -> SimpleNamespace:
        if devices < 0:
            raise OSError(name)
        return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)

    _install(monkeypatch, pjrt, jax_cuda12_pjrt=plugin or None, torch_xla=torch_xla)
    monkeypatch.setattr(pjrt, "toolkit", lambda: toolkit or None)
    monkeypatch.setattr(pjrt.ctypes, "CDLL", driver)
    found = pjrt.lacks("cuda")
    assert lacking in found if lacking else found is None


@pytest.mark.parametrize(
    ("name", "value", "ranks", "meshed", "refused"),
    [
        ("XLA_USE_SPMD", "0", 2, False, False),
        ("XLA_USE_SPMD", "1", 1, False, False),
        ("XLA_USE_SPMD", "1", 2, True, False),
        ("XLA_USE_SPMD", "1", 2, False, True),
        ("XLA_AUTO_SPMD", "1", 1, True, True),
    ],
)
def test_variables_make_no_other_program(name: str, value: str, ranks: int, meshed: bool, refused: bool) -> None:
    with pytest.raises(UserError, match=name) if refused else nullcontext():
        pjrt.check_variables({name: value}, ranks, meshed=meshed)


def test_options_of_xla_are_refused_elsewhere() -> None:
    with pytest.raises(UserError, match="the backend gloo takes no --show-sharding"):
        backends.get("gloo")().configure(show_sharding=True)
    backends.make("gloo", {"mesh": None, "device": None})  # a program for all backends passes None
    with pytest.raises(UserError, match="--show-sharding has no effect without --mesh; give both"):
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
    given = JobOptions(backend_options=options)
    assert given.for_backend(backend, True).backend_options == {name: options[name] for name in kept}
    said = capsys.readouterr().err
    assert (says in said) if says else not said
    given.for_backend(backend, False)
    assert JobOptions(backend_options=options, from_flags=True).for_backend(backend, True).backend_options == options
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("data=4", {"data": 4}),
        ("data=2, model=2", {"data": 2, "model": 2}),
        ("data=-1,model=2", {"data": 2, "model": 2}),
        ("data", "'data'"),
        ("data=0", "'data=0'"),
        ("data=2x2", "'data=2x2'"),
        ("data=2,data=2", "twice"),
        ("data=-1,model=-1", "only one axis"),
        ("data=3", "3 devices, and there are 4"),
        ("data=3,model=-1", "a multiple of 3 devices"),
    ],
)
def test_meshes_of_four_devices(text: str, sizes: dict[str, int] | str) -> None:
    with pytest.raises(UserError, match=sizes) if isinstance(sizes, str) else nullcontext():
        fitted = mesh.fit(mesh.parse(text), 4)
        assert fitted == sizes
        assert mesh.fit(mesh.parse(mesh.text_of(fitted)), 4) == fitted


def test_a_batch_that_does_not_divide_evenly_is_named() -> None:
    axes, sizes = ("data", "model"), {"data": 2, "model": 4}
    assert mesh.spec_of_batch((8, 6), axes, sizes) == (axes, ())
    with pytest.raises(UserError, match="data=2,model=4: 6 into 8 parts"):
        mesh.spec_of_batch((6, 8), axes, sizes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("transformer.h.3.attn.c_proj.weight", "transformer.h.3.attn.c_attn.weight"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"),
        ("gpt_neox.layers.0.mlp.dense_h_to_4h.weight", "gpt_neox.layers.0.mlp.dense_4h_to_h.weight"),
        ("bert.encoder.layer.0.intermediate.dense.weight", "bert.encoder.layer.0.output.dense.weight"),
    ],
)
def test_the_table_cuts_where_megatron_does(first: str, second: str) -> None:
    """The first of two layers by what comes out, the second by what goes in; GPT-2 holds them the other way round."""
    assert mesh.spec_for(first, (8, 24), {"model": 2}) == (("model",), ())
    assert mesh.spec_for(second, (24, 8), {"model": 2}) == ((), ("model",))
    assert mesh.spec_for(second, (24, 7), {"model": 2}) == ((), ()), "does not divide"
