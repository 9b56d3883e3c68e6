# SPDX-License-Identifier: Apache-2.0
"""Checks what every tracked text file must keep to.

usage: lint_text.py [ROOT]

- source files carry the licence line;
- no path into somebody's machine (home folders, mounts) and no URL whose host is not in HOSTS, so
  that the build never depends on one place to fetch from;
- no notes to self in source, no trailing blanks, a newline at the end;
- each top folder has a README.md.
"""

import re
import subprocess
import sys
from pathlib import Path

LICENCE = "SPDX-License-Identifier: Apache-2.0"
SOURCE = {".c", ".h", ".py", ".sh"}
# Text that is not ours or is data.
EXEMPT = ("LICENSE", "bench/results/", "tests/fuzz/corpus/", "tests/tools/fixtures/")

MACHINE_PATH = re.compile(r"(?<![\w./$}>])/(?:work|root|home|Users|opt|mnt|srv)/[\w.-]")
URL = re.compile(r"\b(?:https?|ftp)://([\w.-]+)")
# Documentation and identifiers; nothing here is fetched from.
HOSTS = {
    "127.0.0.1", "arxiv.org", "example.com", "example.org", "github.com", "json-schema.org",
    "keepachangelog.com", "semver.org", "spdx.org", "www.apache.org", "www.w3.org",
}  # fmt: skip
NOTE = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
TOP_FOLDERS = ("include", "src", "python", "tests", "bench", "examples", "docs", "tools")


def tracked_files(root):
    """Paths relative to root, of what git tracks; of everything when root is no repository."""
    run = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    if run.returncode == 0 and (root / ".git").exists():
        names = sorted(name for name in run.stdout.split("\0") if name)
        return [Path(name) for name in names if (root / name).is_file()]
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def read_text(path):
    """The file's text, or None when it is binary."""
    data = path.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def is_source(rel, text):
    return rel.suffix in SOURCE or rel.name in ("meson.build", "Makefile") or text.startswith("#!")


def check_file(rel, text):
    """Yields (line number, reason)."""
    source = text and is_source(rel, text)
    lines = text.splitlines()
    if source and not any(LICENCE in line for line in lines[:3]):
        yield 1, f"no `{LICENCE}` in the first three lines"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end"
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "trailing blanks"
        if MACHINE_PATH.search(line):
            yield number, "a path into one machine"
        for host in URL.findall(line):
            # A name without a dot is nobody's: addresses in tests.
            if "." in host.rstrip(".") and host.rstrip(".") not in HOSTS:
                yield number, f"URL of {host}"
        if source and NOTE.search(line) and rel.name != Path(__file__).name:
            yield number, "a note to self: do it or file it"


def check(root):
    """Yields (path, line number, reason)."""
    for rel in tracked_files(root):
        if str(rel).startswith(EXEMPT):
            continue
        text = read_text(root / rel)
        if text is not None:
            for number, reason in check_file(rel, text):
                yield rel, number, reason
    for folder in TOP_FOLDERS:
        if (root / folder).is_dir() and not (root / folder / "README.md").is_file():
            yield Path(folder), 1, "no README.md"
    for folder in sorted((root / "src").glob("*/")):
        has_source = any(folder.rglob("*.[ch]"))
        if folder.is_dir() and has_source and not (folder / "README.md").is_file():
            yield folder.relative_to(root), 1, "no README.md"


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parent.parent
    findings = list(check(root))
    for path, number, reason in findings:
        print(f"{path}:{number}: {reason}")
    print(f"lint_text: {len(tracked_files(root))} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
