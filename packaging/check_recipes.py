#!/usr/bin/env python3
"""Are the recipes of this version, and do they say what their tools ask for?

Spack and EasyBuild themselves are not run: the recipe's class is made over stand-ins for
what spack.package offers, and the easyconfig is run with EasyBuild's constants.
"""

import pathlib
import re
import sys
import types

root = pathlib.Path(__file__).resolve().parent
workspace = (root.parent / "Cargo.toml").read_text()
version = re.search(r'\[workspace\.package\]\nversion = "(.*)"', workspace).group(1)
rust = re.search(r'^rust-version = "(.*)"', workspace, re.M).group(1)
vendored = f"pinyard-{version}-vendored.tar.xz"
problems = []


def expect(holds, what):
    if not holds:
        problems.append(what)


def spack():
    # Where Spack 1.0 looks for it (package API v2.0).
    repository = root / "spack/spack_repo/pinyard"
    expect("api: v2.0" in (repository / "repo.yaml").read_text(), "spack: another package API")
    path = repository / "packages/pinyard/package.py"
    said = []
    module = types.ModuleType("spack.package")
    for name in ("license", "version", "depends_on", "requires", "conflicts"):
        setattr(module, name, lambda *a, _name=name, **k: said.append((_name, a, k)))
    module.join_path = lambda *parts: "/".join(map(str, parts))
    ran = []
    module.make = lambda *a, **k: ran.append(a)
    module.__all__ = [name for name in vars(module) if not name.startswith("_")]
    sys.modules["spack"] = types.ModuleType("spack")
    sys.modules["spack.package"] = module
    makefile = types.ModuleType("spack_repo.builtin.build_systems.makefile")
    makefile.MakefilePackage = type("MakefilePackage", (), {})
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[makefile.__name__] = makefile
    scope = {"__file__": str(path), "__name__": "package"}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    recipe = scope["Pinyard"]
    expect(pathlib.Path(recipe.git[len("file://"):]) == root.parent, "spack: git is not this tree")
    expect(any(s[0] == "version" for s in said), "spack: no version")
    expect(any(s[0] == "depends_on" and s[1][0] == f"rust@{rust}:" for s in said), f"spack: not rust@{rust}:")
    one = recipe()
    one.stage = types.SimpleNamespace(path="/stage")
    for name, offline in ((f"@{version}", {"CARGOFLAGS": "--offline --locked"}), ("@main", {})):
        one.spec = types.SimpleNamespace(satisfies=name.__eq__)
        environment = {}
        one.setup_build_environment(types.SimpleNamespace(set=environment.__setitem__))
        expect(environment == {"CARGO_HOME": "/stage/cargo"} | offline, f"spack: {name} is built with {environment}")
    expect(recipe.url.endswith(f"/target/package/{vendored}"), "spack: url is not make dist's archive")
    one.build(None, "/prefix")
    one.install(None, "/prefix")
    expect(ran == [("build", "MPI=none"), ("install", "MPI=none", "PREFIX=/prefix", "LIBDIR=lib")], f"spack: {ran}")
    targets = re.findall(r"^([a-z-]+):", (root.parent / "Makefile").read_text(), re.M)
    expect(all(call[0] in targets for call in ran), "spack: a target that the Makefile lacks")


def easybuild(installed):
    files = list((root / "easybuild").glob("*.eb"))
    expect(len(files) == 1, "easybuild: not one easyconfig")
    for path in files:
        scope = {"SHLIB_EXT": "so"}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        for name in ("name", "version", "homepage", "description", "toolchain", "sources", "moduleclass"):
            expect(name in scope, f"{path.name}: no {name}")
        chain = scope["toolchain"]
        expected = f"{scope['name']}-{scope['version']}-{chain['name']}-{chain['version']}.eb"
        expect(path.name == expected, f"{path.name}: is to be called {expected}")
        expect(scope["version"] == version, f"{path.name}: version {scope['version']}, not {version}")
        used = dict((name, number) for name, number, *_ in scope["builddependencies"])["Rust"]
        expect(tuple(map(int, used.split("."))) >= tuple(map(int, rust.split("."))), f"{path.name}: Rust {used}")
        named = {"name": scope["name"], "version": scope["version"]}
        expect([source % named for source in scope["sources"]] == [vendored], f"{path.name}: not make dist's archive")
        for options in ("prebuildopts", "preinstallopts"):
            expect('CARGOFLAGS="--offline --locked"' in scope[options], f"{path.name}: {options} may use a network")
        for options in ("buildopts", "installopts"):
            expect("MPI=none" in scope[options].split(), f"{path.name}: {options} takes an MPI of the machine's")
        for file in scope["sanity_check_paths"]["files"]:
            expect(not installed or file in installed, f"{path.name}: {file} is not installed")


def rpm():
    text = (root / "rpm/pinyard.spec").read_text()
    expect(re.search(r"^Version: +(.*)", text, re.M).group(1) == version, "rpm: another version")
    for tool in ("cargo", "rust"):
        expect(f"BuildRequires:  {tool} >= {rust}\n" in text, f"rpm: not {tool} {rust}")


# The list of `packaging/install.sh list`, where given.
spack()
rpm()
easybuild(set(sys.argv[1:]))
for problem in problems:
    print(problem)
sys.exit(bool(problems))
