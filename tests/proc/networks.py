# SPDX-License-Identifier: Apache-2.0
"""Two hosts of one test: network namespaces of their own, joined by a cable. Nothing else is in
them, so that addresses and ports are the test's to choose and nothing leaves this machine."""

from __future__ import annotations

import os
import subprocess

HOLD = ["sh", "-c", "echo ready; exec sleep 600"]


class Host:
    """A namespace. `enter` in front of a command runs it there."""

    def __init__(self, within=()):
        # Without root, namespaces belong to a user namespace where we are root.
        own = ["unshare", "--net"] if os.geteuid() == 0 or within else ["unshare", "-Ur", "--net"]
        self.holder = subprocess.Popen(
            [*within, *own, *HOLD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self.holder.stdout.readline().strip() != "ready":
            said = self.holder.communicate()[1]
            raise AssertionError(
                f"no network namespace (root, or user namespaces, are needed): {said}"
            )
        self.users = (
            []
            if os.geteuid() == 0
            else ["nsenter", "-t", str(self.holder.pid), "-U", "--preserve-credentials"]
        )
        self.enter = [*self.users, "nsenter", "-t", str(self.holder.pid), "--net"]

    def ip(self, *words):
        subprocess.run([*self.enter, "ip", *words], check=True, timeout=10)

    def end(self):
        self.holder.kill()
        self.holder.communicate()


class Cable:
    """Hosts `a` at 10.91.0.1 and `b` at 10.91.0.2."""

    def __init__(self):
        self.a = Host()
        self.b = Host(self.a.users)
        self.a.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable",
                  "netns", str(self.b.holder.pid))  # fmt: skip
        for host, address in ((self.a, "10.91.0.1/24"), (self.b, "10.91.0.2/24")):
            host.ip("address", "add", address, "dev", "cable")
            host.ip("link", "set", "cable", "up")
            host.ip("link", "set", "lo", "up")

    def end(self):
        self.b.end()
        self.a.end()
