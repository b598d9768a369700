"""Write a `g++` whose libraries run on manylinux_2_28 (glibc 2.28 of RHEL 8) into a folder: old_symbols.py FOLDER.

glibc and libstdc++ keep the old versions of a symbol, but a linker takes the newest: on Debian 12 `pthread_create` and
`dlopen` ask for glibc 2.34, `pthread_getaffinity_np` for 2.32, `log2` for 2.29, `std::condition_variable::wait` for the
libstdc++ of GCC 12. The folder gets libraries to link to, which have each symbol of this machine's in one version, the
newest that manylinux_2_28 has. Where all are newer (`fstat`, `pthread_cond_clockwait`), the files missing.* have the
function, or auditwheel names it. $PYTHON_HEADERS come before the headers of the Python that calls the compiler. With
CROSS=aarch64-linux-gnu- the compiler is that for aarch64.
"""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# The newest of manylinux_2_28, as auditwheel has them.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
LIBRARIES = {"libc.so.6": "libc.so.6", "libm.so.6": "libm.so", "libstdc++.so.6": "libstdc++.so"}
CROSS = os.environ.get("CROSS", "")
# Until glibc 2.34 threads and dlopen were in libraries of their own.
COMPILER = """#!/bin/sh
exec {cross}g++ ${{PYTHON_HEADERS:+-isystem"$PYTHON_HEADERS"}} "$@" -L{folder} -lmissing \\
    -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed
"""


def rank(version: str) -> tuple[bool, tuple[int, ...]]:
    """Return a key by which the last version is the one to link to: too new ones first, the newest of those first."""
    family, _, number = version.partition("_")
    numbers = tuple(int(part) for part in number.split("."))
    allowed = numbers <= NEWEST[family]
    return allowed, numbers if allowed else tuple(-part for part in numbers)


def symbols(library: Path) -> dict[str, tuple[str, str]]:
    """Return the symbols of a library, each with its type and the version to link to."""
    listing = subprocess.run(["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True)
    found: dict[str, tuple[str, str]] = {}
    for fields in map(str.split, listing.stdout.splitlines()):
        if len(fields) == 8 and fields[6] not in ("UND", "Ndx", "ABS"):
            name, _, version = fields[7].replace("@@", "@").partition("@")
            family, _, number = version.partition("_")
            if family in NEWEST and number[:1].isdigit():
                kind = "tls_object" if fields[3] == "TLS" else "function"
                found[name] = max((kind, version), found.get(name, (kind, version)), key=lambda each: rank(each[1]))
    return found


def write_stub(library: Path, soname: str, output: Path) -> None:
    """Write a library without code that has the symbols of `library`, each in one version."""
    by_version = defaultdict(list)
    code = ""
    for name, (kind, version) in symbols(library).items():
        by_version[version].append(name)
        section = ".tbss" if kind == "tls_object" else ".text"
        code += f".section {section}\n.globl {name}\n.type {name},@{kind}\n{name}:\n"
    script, source = output.with_suffix(".map"), output.with_suffix(".s")
    script.write_text(
        "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in by_version.items())
    )
    source.write_text(code)
    compile_c(source, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-o", output)


def compile_c(*arguments: str | Path) -> None:
    """Call gcc."""
    subprocess.run([f"{CROSS}gcc", *arguments], check=True)


def path_of(library: str) -> Path:
    """Return the path of a library of this machine."""
    found = subprocess.run([f"{CROSS}g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).resolve()


def main(folder: Path) -> None:
    """Write the libraries and the compiler."""
    folder.mkdir(parents=True)
    for library, file in LIBRARIES.items():
        write_stub(path_of(library), library, folder / file)
    loader = path_of("ld-linux-aarch64.so.1" if CROSS else "ld-linux-x86-64.so.2")
    others = f"{path_of('libc_nonshared.a')} AS_NEEDED ( {loader} )"
    folder.joinpath("libc.so").write_text(f"GROUP ( {folder / 'libc.so.6'} {others} )\n")
    missing = sorted(Path(__file__).parent.glob("missing.c*"))
    objects = [folder / f"{source.name}.o" for source in missing]
    for source, output in zip(missing, objects, strict=True):
        language = ["-std=c++20"] if source.suffix == ".cpp" else []
        compile_c(*language, "-O2", "-fPIC", "-fvisibility=hidden", "-c", source, "-o", output)
    subprocess.run(["ar", "rcD", folder / "libmissing.a", *objects], check=True)
    compiler = folder / "g++"
    compiler.write_text(COMPILER.format(folder=folder, cross=CROSS))
    compiler.chmod(0o755)


main(Path(sys.argv[1]).resolve())
