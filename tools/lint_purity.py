# SPDX-License-Identifier: Apache-2.0
"""Checks that base, wire and core are pure, from what the linker sees of them.

usage: lint_purity.py BUILD_DIR [ALLOW_FILE]

Reads the archives of the three folders in BUILD_DIR with nm. Every undefined symbol that none of
them defines must be in tools/purity.allow, and none may have writable data: state is in objects
that the caller owns. BUILD_DIR must be a build without sanitizers, whose runtime would show.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ("base", "wire", "core")
# Sections of writable data; .data.rel.ro is a constant table of pointers, in code that can move.
WRITABLE = re.compile(r"^(?!\.data\.rel\.ro)\.(?:data|bss|tdata|tbss)|^\*COM\*$")
ALLOW_LINE = re.compile(r"^(\S+)\s+\S.*$")


def read_allow(path):
    """The set of allowed symbols; every line must give a reason."""
    allowed = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = ALLOW_LINE.match(line)
        if not match:
            raise ValueError(f"{path}:{number}: a symbol needs a reason beside it")
        allowed.add(match.group(1))
    return allowed


def parse_nm(text):
    """Yields (object, symbol, section) from `nm --format=sysv`; section "*UND*" when undefined."""
    name = ""
    for line in text.splitlines():
        if line.startswith(("Symbols from ", "Undefined symbols from ")):
            name = line.split(" from ", 1)[1].rstrip(":")
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 7 and fields[0] and fields[0] != "Name":
            # An undefined weak symbol (letter w) has its section too; a common one has letter C.
            section = "*COM*" if fields[2] == "C" else fields[6]
            yield name, fields[0].split("@")[0], section


def judge(symbols, allowed):
    """(findings, allowed symbols that nothing asked for) for (object, symbol, section) triples."""
    symbols = list(symbols)
    ours = {symbol for _, symbol, section in symbols if section != "*UND*"}
    findings, used = [], set()
    for name, symbol, section in symbols:
        if section == "*UND*" and symbol not in ours:
            if symbol in allowed:
                used.add(symbol)
            else:
                findings.append(f"{name}: asks for {symbol}, which tools/purity.allow lacks")
        elif WRITABLE.search(section):
            findings.append(f"{name}: {symbol} is writable data outside any object")
    return findings, sorted(allowed - used)


def archives_of(build):
    return [path for folder in FOLDERS for path in sorted((build / "src" / folder).glob("**/*.a"))]


def main(argv):
    if len(argv) < 2:
        print(__doc__)
        return 2
    build = Path(argv[1])
    allow = Path(argv[2]) if len(argv) > 2 else Path(__file__).resolve().parent / "purity.allow"
    archives = archives_of(build)
    if not archives:
        print(f"lint_purity: no archive of {', '.join(FOLDERS)} in {build}")
        return 1
    nm = subprocess.run(
        ["nm", "--format=sysv", *archives], capture_output=True, text=True, check=True
    )
    symbols = list(parse_nm(nm.stdout))
    findings, unused = judge(symbols, read_allow(allow))
    for finding in findings:
        print(finding)
    if unused:
        print(f"lint_purity: allowed and not used: {' '.join(unused)}")
    objects = len({name for name, _, _ in symbols})
    print(f"lint_purity: {objects} objects, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
