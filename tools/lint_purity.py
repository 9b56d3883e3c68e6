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
# nm's letters for writable data: .data, .bss, common, and thread-local or small variants of them.
WRITABLE = set("dDbBCsSgG")
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
    """Yields (object, letter, symbol) from the output of `nm -A`: archive:object:address L name."""
    for line in text.splitlines():
        place, _, rest = line.rpartition(":")
        fields = rest.split()
        if len(fields) >= 2:
            letter, symbol = fields[-2], fields[-1].split("@")[0]
            yield place.rpartition(":")[2], letter, symbol


def judge(symbols, allowed):
    """(findings, allowed symbols that nothing asked for) for (object, letter, symbol) triples."""
    symbols = list(symbols)
    ours = {symbol for _, letter, symbol in symbols if letter not in "Uwv"}
    findings, used = [], set()
    for name, letter, symbol in symbols:
        if letter in "Uwv" and symbol not in ours:
            if symbol in allowed:
                used.add(symbol)
            else:
                findings.append(f"{name}: asks for {symbol}, which tools/purity.allow lacks")
        elif letter in WRITABLE:
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
    nm = subprocess.run(["nm", "-A", *archives], capture_output=True, text=True, check=True)
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
