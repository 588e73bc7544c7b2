# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a published collection is held to and no tool looks at: nothing is let off, and the versions that are named in several places are the same."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import tarfile
import typing as t

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]


def load(*way: str) -> t.Any:
    return yaml.safe_load(ROOT.joinpath(*way).read_text(encoding="utf-8"))


def sources(*places: str) -> list[pathlib.Path]:
    return [path for place in places for path in (ROOT / place).rglob("*") if path.suffix in (".py", ".yml", ".j2", ".sh")]


def test_no_test_and_no_rule_is_let_off() -> None:
    lint = load(".ansible-lint")
    assert lint["profile"] == "production" and lint["skip_list"] == [] and not {"warn_list", "use_default_rules", "mock_roles"} & set(lint)
    # Modules that no index but Galaxy has, for those who have AWX.
    assert all(name.startswith("awx.awx.") for name in lint.get("mock_modules", []))
    assert not list(ROOT.glob("tests/sanity/ignore*")) and not list(ROOT.glob("*.lint-ignore")) and not (ROOT / ".ansible-lint-ignore").exists()
    for path in sources("plugins", "roles", "playbooks"):
        assert not re.search(r"# ?noqa|# pylint:|# yamllint disable|ignore_errors:|\|\| true", path.read_text(encoding="utf-8")), path
    # Written apart, so that this line is not found.
    marks = re.compile("mark[.](?:" + "skip|xfail)|pytest[.](?:" + "skip|xfail|importorskip)\\(")
    assert not [path for path in sources("tests") if marks.search(path.read_text(encoding="utf-8"))]


def test_the_lowest_core_is_the_same_everywhere() -> None:
    requires = load("meta", "runtime.yml")["requires_ansible"]
    lowest = re.fullmatch(r">=(\d+\.\d+)\.0", requires)
    assert lowest
    cores = re.search(r"^CORES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert cores and cores[1].split()[0] == lowest[1]
    assert f"ansible-core>={lowest[1]}\n" in (ROOT / "requirements.txt").read_text()
    assert f"ansible-core {lowest[1]} or newer" in (ROOT / "README.md").read_text()
    for path in (ROOT / "roles").glob("*/meta/main.yml"):
        assert yaml.safe_load(path.read_text())["galaxy_info"]["min_ansible_version"] == lowest[1], path


def test_what_galaxy_yml_says() -> None:
    galaxy = load("galaxy.yml")
    assert int(galaxy["version"].split(".")[0]) >= 1 and len(galaxy["tags"]) <= 20
    assert set(galaxy["tags"]) & {"ai", "application", "cloud", "database", "infrastructure", "linux", "monitoring", "networking", "security", "tools"}
    # From 1.0.0 on, and no upper bound.
    assert all(re.fullmatch(r">=[1-9]\d*\.\d+\.\d+", wanted) for wanted in galaxy["dependencies"].values())
    assert galaxy["license"] == ["GPL-3.0-or-later"]


def artifact() -> t.Any:
    spec = importlib.util.spec_from_file_location("artifact", ROOT / "tests" / "artifact.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_artifacts_bytes_follow_from_its_files(tmp_path: pathlib.Path) -> None:
    subject = artifact()
    made = []
    for when, names in enumerate((["FILES.json", "MANIFEST.json", "b", "a"], ["a", "b", "MANIFEST.json", "FILES.json"])):
        listing = {"files": [{"name": name} for name in names if len(name) == 1]}
        manifest = {"file_manifest_file": {"chksum_sha256": subject.hashlib.sha256(subject.encoded(listing)).hexdigest()}}
        content = {"FILES.json": subject.encoded(listing), "MANIFEST.json": subject.encoded(manifest), "a": b"1", "b": b"22"}
        members = {name: (tarfile.TarInfo(name), content[name]) for name in names}
        members["a"][0].mtime, members["b"][0].uname = when, f"user{when}"
        subject.ordered(members)
        made.append(subject.packed(members, 1_700_000_000))
    assert made[0] == made[1]
    (tmp_path / "a.tar.gz").write_bytes(made[0])
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert archive.getnames() == ["FILES.json", "MANIFEST.json", "a", "b"]
        assert {(info.mtime, info.uid, info.uname) for info in archive} == {(1_700_000_000, 0, "")}
        found = {info.name: t.cast("t.IO[bytes]", archive.extractfile(info)).read() for info in archive}
    assert found["b"] == b"22" and subject.hashlib.sha256(found["FILES.json"]).hexdigest().encode() in found["MANIFEST.json"]
