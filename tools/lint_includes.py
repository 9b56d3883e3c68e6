# SPDX-License-Identifier: Apache-2.0
"""Checks every #include under src/ (and of the programs' and users' folders) against src/DEPS.

usage: lint_includes.py [ROOT]

Prints `file:line: reason` for each include that has no declared edge, and ends with a count.
Exit status 1 when there was one.
"""

import configparser
import fnmatch
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Folders outside src/ that may use the public API and the system, and nothing else of ours.
PUBLIC_USERS = ("examples", "python")


class Deps:
    """src/DEPS, read once."""

    def __init__(self, path):
        ini = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        ini.optionxform = str  # folder and header names are case-sensitive
        ini.read_string(path.read_text())
        self.edges = {folder: line.split() for folder, line in ini["edges"].items()}
        self.pure_folders = ini["system"]["pure_folders"].split()
        self.pure = ini["system"]["pure"].split()
        self.other = ini["system"]["other"].split()
        self.third_party = {pat: line.split() for pat, line in ini["third-party"].items()}

    def folder_of(self, rel):
        """The longest folder of [edges] that contains rel (a path relative to src/), or None."""
        for parent in Path(rel).parents:
            if str(parent) in self.edges:
                return str(parent)
        return None

    def third_party_owner(self, header):
        """The folders or files that may include the header, or None when it is not third-party."""
        for pattern, owners in self.third_party.items():
            if fnmatch.fnmatchcase(header, pattern):
                return owners
        return None


def matches_any(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_within(rel, place):
    """True when rel is the file `place`, or lies in the folder `place`."""
    return rel == place or rel.startswith(place + "/")


def judge_system(deps, rel, header):
    """Why the file rel may not include <header>; None when it may."""
    owners = deps.third_party_owner(header)
    if owners is not None:
        if any(is_within(rel, owner) for owner in owners):
            return None
        return f"<{header}> is for {' '.join(owners)} alone"
    if matches_any(header, deps.pure):
        return None
    if rel.split("/")[0] in deps.pure_folders:
        return f"<{header}> is not for a pure folder"
    if matches_any(header, deps.other):
        return None
    return f"<{header}> is in neither [system] nor [third-party] of src/DEPS"


def judge_ours(deps, root, rel, header):
    """Why the file rel (below src/) may not include "header"; None when it may."""
    if not (root / "src" / header).is_file():
        return f'"{header}" does not exist under src/ (paths start there)'
    folder, target = deps.folder_of(rel), deps.folder_of(header)
    if folder is None:
        return f"no line for {Path(rel).parent} in src/DEPS"
    if target == folder or target in deps.edges[folder] or header in deps.edges[folder]:
        return None
    return f'"{header}": no edge {folder} -> {target}'


def judge_public_user(deps, root, path, quote, header):
    """Why a user of the public API may not include the header; None when it may."""
    if quote == '"':
        near = (path.parent / header).resolve()
        if near.is_file() and root.resolve() / path.relative_to(root).parts[0] in near.parents:
            return None
        return f'"{header}": only <tq/...> and its own files are for this folder'
    if header == "Python.h" and path.relative_to(root).parts[0] == "python":
        return None
    return judge_system(deps, str(path.relative_to(root)), header)


def check(root):
    """Yields (path, line number, reason) for every include that is not allowed."""
    deps = Deps(root / "src" / "DEPS")
    for path in sorted(root.glob("src/**/*.[ch]")) + sorted(root.glob("include/**/*.h")):
        rel = str(path.relative_to(root / "src")) if (root / "src") in path.parents else None
        for number, quote, header in includes_of(path):
            if header.startswith("tq/") and quote == "<":
                reason = (
                    None if (root / "include" / header).is_file() else f"<{header}> is not there"
                )
            elif rel is None:
                ok = quote == "<" and matches_any(header, deps.pure)
                reason = None if ok else f"{header}: a public header includes C's own and <tq/...>"
            elif quote == "<":
                reason = judge_system(deps, rel, header)
            else:
                reason = judge_ours(deps, root, rel, header)
            if reason:
                yield path.relative_to(root), number, reason
    for user in PUBLIC_USERS:
        for path in sorted((root / user).glob("**/*.[ch]")):
            for number, quote, header in includes_of(path):
                if quote == "<" and header.startswith("tq/"):
                    continue
                reason = judge_public_user(deps, root, path, quote, header)
                if reason:
                    yield path.relative_to(root), number, reason


def includes_of(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parent.parent
    findings = list(check(root))
    for path, number, reason in findings:
        print(f"{path}:{number}: {reason}")
    files = len(list(root.glob("src/**/*.[ch]")))
    print(f"lint_includes: {files} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
