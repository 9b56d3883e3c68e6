# SPDX-License-Identifier: Apache-2.0
"""Compiles each header alone: it must bring what it needs.

usage: lint_headers.py [ROOT]

Public headers (include/tq) are compiled as C11 and as C++17, by gcc and by clang; those under src/
as C11 by gcc.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
AS_C = ["-x", "c", "-std=c11", "-D_GNU_SOURCE", "-Wstrict-prototypes"]
AS_CXX = ["-x", "c++", "-std=c++17"]
COMPILERS = (
    ("gcc", AS_C),
    ("g++", AS_CXX),
    ("clang", AS_C),
    ("clang++", AS_CXX),
)


def jobs(root):
    """(compiler, its flags, header as it is included) for everything to compile."""
    public = sorted((root / "include").rglob("*.h"))
    shared = sorted((root / "src").rglob("*.h"))
    for compiler, flags in COMPILERS:
        if shutil.which(compiler):
            for path in public:
                yield compiler, flags, f"<{path.relative_to(root / 'include')}>"
    for path in shared:
        yield "gcc", AS_C, f'"{path.relative_to(root / "src")}"'


def compile_alone(root, job):
    """The compiler's complaint, or an empty string."""
    compiler, flags, header = job
    # Twice: the include guard is part of the contract.
    unit = f"#include {header}\n#include {header}\ntypedef int tq_not_empty_t;\n"
    run = subprocess.run(
        [compiler, *flags, *WARNINGS, f"-I{root / 'include'}", f"-I{root / 'src'}", "-"],
        input=unit,
        text=True,
        capture_output=True,
    )
    return run.stderr if run.returncode else ""


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parent.parent
    todo = list(jobs(root))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = list(pool.map(lambda job: compile_alone(root, job), todo))
    failed = 0
    for (compiler, flags, header), complaint in zip(todo, complaints, strict=True):
        if complaint:
            failed += 1
            print(f"{header} alone, {compiler} {flags[2]}:\n{complaint}")
    print(f"lint_headers: {len(todo)} compilations, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
