# SPDX-License-Identifier: MIT OR Apache-2.0
"""pinyard from the source tree that this recipe lies in, for Spack 1.0 and later.

make dist && spack repo add packaging/spack/spack_repo/pinyard && spack install --no-checksum pinyard

builds the archive that has the crates, without a network. `pinyard@main` builds the last commit, for
which cargo downloads crates.
"""

import os

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Pinyard(MakefilePackage):
    """Registered memory for MPI programs: a registration cache that no allocator can hang
    and that marks what a change of a mapping makes stale, and pools of memory that is registered once."""

    # Not published anywhere yet: the tree's own archive and repository.
    tree = os.path.abspath(
        os.path.join(os.path.dirname(os.path.realpath(__file__)), *[os.pardir] * 6)
    )
    url = f"file://{tree}/target/package/pinyard-0.1.0-vendored.tar.xz"
    git = f"file://{tree}"

    license("MIT OR Apache-2.0")

    version("0.1.0")
    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.89:", type="build")
    depends_on("gmake", type="build")

    requires("platform=linux")
    conflicts("^musl", msg="the hooks patch glibc")

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", join_path(self.stage.path, "cargo"))
        if not self.spec.satisfies("@main"):
            env.set("CARGOFLAGS", "--offline --locked")

    def build(self, spec, prefix):
        # Without an MPI: one of the machine's would be found, and not Spack's.
        make("build", "MPI=none", parallel=False)

    def install(self, spec, prefix):
        make("install", "MPI=none", "PREFIX={0}".format(prefix), "LIBDIR=lib", parallel=False)
