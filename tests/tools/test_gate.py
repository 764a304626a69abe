from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import gate
import gate_mail
import staging_world
from files import sha256_of_file
from findings import UnusableError, apply_rules
from index_server import Fault
from package_index import IndexFile
from publishing import Entry, Held, Manifest, parse_manifest, write_manifest
from staging_world import NIGHTLY, RELEASE, World, arguments_of_children, leaks, mail_server
from two_wheels import stand_in


def execute(world: World, manifest: Path) -> subprocess.CompletedProcess[str]:
    return world.run("gate", str(manifest), "--execute")


def is_complete(world: World) -> None:
    """Every file is public once with its bytes, staging is empty, both mails came once."""
    built = {path.name: path.read_bytes() for path in world.dist.iterdir()}
    assert world.indexes["public"].files() == built
    assert sorted(world.indexes["public"].uploads()) == sorted(built)
    assert world.held("staging") == []
    assert len({mail["Message-ID"] for mail in world.mailbox.mails}) == 2


def test_files_become_public_and_leave_staging(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    done = execute(world, manifest)
    assert done.returncode == 0, done.stdout
    is_complete(world)
    accepted, finished = world.mailbox.subjects
    assert accepted.startswith("[sync] accepted: sync-a 1.2.3.dev")
    assert finished.startswith("[sync] published: sync-a 1.2.3.dev")
    assert "3 of 3 files are public" in world.mailbox.texts[1]
    assert "deleted from staging" in world.mailbox.texts[1]
    assert {str(mail["To"]) for mail in world.mailbox.mails} == {"everybody@sync.invalid"}


def test_a_second_run_changes_and_mails_nothing(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    execute(world, manifest)
    before = len(world.indexes["public"].log)
    done = execute(world, manifest)
    assert done.returncode == 0, done.stdout
    is_complete(world)
    assert len(world.mailbox.mails) == 2
    assert {each.method for each in world.indexes["public"].log[before:]} == {"GET"}


def test_without_execute_nothing_is_written(world: World) -> None:
    done = world.run("gate", str(world.staged_manifest(NIGHTLY)))
    assert done.returncode == 0, done.stdout
    assert "publish: sync_a-1.2.3.dev20261130080000-py3-none-any.whl" in done.stdout
    assert "nothing was changed" in done.stdout
    methods = {each.method for index in world.indexes.values() for each in index.log}
    assert methods == {"GET"}
    assert world.mailbox.mails == []
    assert not (world.folder / "gate").exists()


def test_a_run_that_is_killed_at_every_step_is_finished_by_the_next(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    steps = [("after-mail", 1)]
    steps += [("after-upload", 1)] * 3
    steps += [("after-delete", 1)] * 3
    steps += [("after-mail", 1)]
    for point, number in steps:
        world.kill_at(point, number, "gate", str(manifest), "--execute")
    done = execute(world, manifest)
    assert done.returncode == 0, done.stdout
    is_complete(world)
    assert [subject.split()[1] for subject in world.mailbox.subjects] == [
        *["accepted:"] * 2,
        *["published:"] * 2,
    ]


def test_no_server_ever_misses_what_a_killed_run_sent(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.kill_at("after-upload", 2, "gate", str(manifest), "--execute")
    assert len(world.held("public")) == 2
    assert len(world.held("staging")) == 3
    plan = world.run("gate", str(manifest))
    assert plan.stdout.count("gate: already public: ") == 2
    assert plan.stdout.count("gate: publish: ") == 1


@pytest.mark.parametrize(
    ("fault", "code", "public"),
    [
        (Fault("error", r"POST .*sync_b"), 3, 1),
        (Fault("error", r"POST .*sync_b", status=400), 1, 1),
        (Fault("hang", r"POST .*sync_b", times=1), 3, 1),
        (Fault("error-after", r"POST .*sync_b", times=1), 0, 3),
        (Fault("stale", r"sync_b"), 3, 2),
    ],
    ids=["500", "400", "timeout", "500 after the work", "page lags"],
)
def test_an_index_that_fails_is_believed_no_more_than_its_bytes(
    world: World, fault: Fault, code: int, public: int
) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["public"].faults.append(fault)
    done = execute(world, manifest)
    assert done.returncode == code, done.stdout
    assert len(world.held("public")) == public
    if code:
        assert len(world.held("staging")) == 3
        assert world.mailbox.subjects[-1].startswith("[sync] not complete: ")
        stated = world.mailbox.texts[-1].count("\n  public: ")
        assert stated == public - (fault.kind == "stale")
    world.indexes["public"].faults.clear()
    done = execute(world, manifest)
    assert done.returncode == 0, done.stdout
    built = {path.name: path.read_bytes() for path in world.dist.iterdir()}
    assert world.indexes["public"].files() == built
    assert world.held("staging") == []
    assert world.mailbox.subjects[-1].startswith("[sync] published: ")


def test_a_lying_hash_stops_the_run_and_keeps_staging(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["public"].faults.append(Fault("lie", "sync_a"))
    done = execute(world, manifest)
    assert done.returncode == 1, done.stdout
    assert "GATE201" in done.stdout
    assert "installers will refuse it" in done.stdout
    assert len(world.held("public")) == 1
    assert len(world.held("staging")) == 3
    assert "WRONG" in world.mailbox.texts[-1]


def test_an_index_that_goes_away_leaves_the_truth_unknown(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    public = world.indexes["public"]
    public.on_stored = lambda _: public.faults.append(Fault("error", ""))
    done = execute(world, manifest)
    assert done.returncode == 3, done.stdout
    assert "0 of 3 files are public" in world.mailbox.texts[-1]
    assert world.mailbox.texts[-1].count("unknown, the index did not answer") == 3
    assert len(world.held("staging")) == 3


def test_a_burned_name_is_refused_and_said(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    public = world.indexes["public"]
    middle = sorted(world.dist.iterdir())[1]
    public.put(middle)
    public.remove(middle.name)
    done = execute(world, manifest)
    assert done.returncode == 1, done.stdout
    assert "This filename has already been used" in done.stdout
    assert "1 of 3 files are public" in world.mailbox.texts[-1]
    assert len(world.held("staging")) == 3


def refused(world: World, manifest: Path, code: str) -> str:
    """Run the gate, which must refuse with one code before anything is sent."""
    done = execute(world, manifest)
    assert done.returncode == 1, done.stdout
    assert code in done.stdout
    methods = {each.method for index in world.indexes.values() for each in index.log}
    assert methods <= {"GET", "HEAD"}
    (subject,) = world.mailbox.subjects
    assert subject.startswith("[sync] refused: ")
    assert code in world.mailbox.texts[0]
    return done.stdout


def test_the_middle_file_over_the_limit_stops_all_three(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.build(RELEASE)
    middle = world.dist / "sync_b-1.2.3-py3-none-any.whl"
    stand_in(world.dist, "sync-b", RELEASE, files={"sync_b.py": bytes(1 << 20)})
    assert middle.stat().st_size > 1 << 20
    for path in world.dist.iterdir():
        world.indexes["staging"].put(path)
    manifest = write_manifest(Manifest(world.entries(), "run-1", "c" * 40), world.folder / "m")
    monkeypatch.setenv("PYPI_FILE_LIMIT_MB", "1")
    out = refused(world, manifest, "GATE106")
    assert "sync_b-1.2.3-py3-none-any.whl: GATE106 1.00 MiB" in out


def test_an_edited_manifest_is_refused(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document["commit"] = "d" * 40
    manifest.write_text(json.dumps(document), encoding="utf-8")
    assert "edited or renamed" in refused(world, manifest, "GATE101")


def test_a_file_that_is_not_what_its_name_says_is_refused(world: World) -> None:
    other = stand_in(world.folder, "sync-a", "1.2.2")
    path = other.rename(world.dist / f"sync_a-{NIGHTLY}-py3-none-any.whl")
    world.indexes["staging"].put(path, NIGHTLY)
    size, digest = path.stat().st_size, sha256_of_file(path)
    entry = Entry("sync-a", NIGHTLY, path.name, size, digest)
    manifest = write_manifest(Manifest((entry,), "run-1", "c" * 40), world.folder / "m")
    assert "its metadata say sync-a 1.2.2" in refused(world, manifest, "GATE104")


def test_a_stale_file_of_the_same_version_in_staging_is_refused(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    stale = stand_in(world.folder, "sync-a", NIGHTLY)
    world.indexes["staging"].put(
        stale.rename(stale.with_name(f"sync_a-{NIGHTLY}-1-py3-none-any.whl")), NIGHTLY
    )
    assert "invoke leftovers" in refused(world, manifest, "GATE105")


def test_other_bytes_in_staging_are_refused(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["staging"].put(stand_in(world.folder, "sync-a", NIGHTLY, ("sync-b",)))
    refused(world, manifest, "GATE103")


def test_a_full_project_is_refused(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    entry = world.entries()[0]
    big = stand_in(world.folder, "sync-a", "1.2.2")
    world.indexes["public"].put(big)
    held = world.indexes["public"].held
    held[big.name] = replace(held[big.name], size=(10 << 30) - entry.size + 1)
    assert "sync-a: GATE107" in refused(world, manifest, "GATE107")


def test_other_public_bytes_are_refused(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["public"].put(stand_in(world.folder, "sync-a", NIGHTLY, ("sync-b",)))
    refused(world, manifest, "GATE108")


def test_what_is_staged_no_longer_is_refused(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["staging"].remove(world.held("staging")[1])
    refused(world, manifest, "GATE102")


def test_a_staging_index_that_fails_says_nothing_of_the_manifest(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["staging"].faults.append(Fault("error", "simple", status=503))
    done = execute(world, manifest)
    assert done.returncode == 3, done.stdout
    assert "rerun when it does" in done.stdout
    assert world.mailbox.mails == []
    assert world.held("public") == []


def test_a_mail_server_that_is_down_loses_nothing(tmp_path: Path) -> None:
    with staging_world.create(tmp_path) as world:
        manifest = world.staged_manifest(NIGHTLY)
        done = execute(world, manifest)
        assert done.returncode == 3, done.stdout
        assert "GATE204" in done.stdout
        assert len(world.held("public")) == 3
        assert world.held("staging") == []
        assert len(list((world.folder / "gate").rglob("outbox/*.eml"))) == 2
        with mail_server(world.port, world.mailbox):
            done = execute(world, manifest)
        assert done.returncode == 0, done.stdout
        assert [subject.split()[1] for subject in world.mailbox.subjects] == [
            "accepted:",
            "published:",
        ]
        assert "3 of 3 files are public" in world.mailbox.texts[1]


def test_a_mail_server_that_says_no_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> str:
        return "451 out of order"

    manifest = world.staged_manifest(NIGHTLY)
    monkeypatch.setattr(type(world.mailbox), "handle_DATA", refuse)
    assert execute(world, manifest).returncode == 3
    monkeypatch.undo()
    assert execute(world, manifest).returncode == 0
    assert len(world.mailbox.mails) == 2


def test_no_secret_is_printed_or_an_argument(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    world.indexes["public"].faults.append(Fault("hang", "POST", times=1))
    process = subprocess.Popen(
        world.command("gate", str(manifest), "--execute"),
        env=world.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: set[str] = set()
    while process.poll() is None:
        seen.update(arguments_of_children(process.pid))
        time.sleep(0.02)
    out, _ = process.communicate()
    assert any("twine upload" in line for line in seen)
    assert not leaks(" ".join(seen))
    assert not leaks(out)
    log = "".join(path.read_text() for path in (world.folder / "gate").rglob("*") if path.is_file())
    assert not leaks(log)


def test_a_wrong_token_is_a_refusal_without_the_token(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    wrong = {"TWINE_PASSWORD": "wrong-secret"}
    done = world.run("gate", str(manifest), "--execute", **wrong)
    assert done.returncode == 1, done.stdout
    assert "403" in done.stdout
    assert "wrong-secret" not in done.stdout
    assert world.held("public") == []


def test_another_machine_needs_permission(world: World) -> None:
    manifest = world.staged_manifest(NIGHTLY)
    elsewhere = "http://index.invalid/legacy/"
    done = world.run("gate", str(manifest), "--execute", MMAEMU_UPLOAD_URL=elsewhere)
    assert done.returncode == 2
    assert "add --allow-remote" in done.stdout


# --- rules on records ---------------------------------------------------------------------------

HASH = "a" * 64


def facts(**changes: object) -> gate.Facts:
    entry = Entry("sync-a", "1.0.0", "sync_a-1.0.0-py3-none-any.whl", 100, HASH)
    manifest = Manifest((entry,), "run", "commit")
    found = gate.Facts(
        name=f"1.0.0-0001-{manifest.digest}.json",
        manifest=manifest,
        staged={},
        public={},
        used={"sync-a": 0},
        limit=100,
        quota=100,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def codes(found: gate.Facts) -> set[str]:
    return {finding.code for finding in apply_rules(gate.PREFLIGHT, found).findings}


def test_equal_to_the_limit_and_to_the_quota_passes() -> None:
    assert codes(facts()) == {"GATE102"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"limit": 99}, "GATE106"),
        ({"quota": 99}, "GATE107"),
        ({"used": {"sync-a": 1}}, "GATE107"),
        ({"name": "1.0.0-0001-0000000000000000.json"}, "GATE101"),
    ],
)
def test_one_more_is_too_much(changes: dict[str, object], code: str) -> None:
    assert code in codes(facts(**changes))


def test_what_is_public_needs_neither_staging_nor_quota() -> None:
    held = Held(IndexFile("sync_a-1.0.0-py3-none-any.whl", ""), b"bytes")
    assert codes(facts(public={held.file.name: held}, used={"sync-a": 100})) == {"GATE108"}


# --- the manifest's text --------------------------------------------------------------------------


def document() -> dict[str, object]:
    found: dict[str, object] = json.loads(facts().manifest.text)
    return found


def test_a_manifest_has_the_published_form() -> None:
    assert document() == {
        "schema": "mmaemu.publishing-manifest/1",
        "publish_all": False,
        "publishing_groups": [
            {
                "packages": [
                    {
                        "name": "sync-a",
                        "version": "1.0.0",
                        "files": [
                            {
                                "file": "sync_a-1.0.0-py3-none-any.whl",
                                "size": 100,
                                "sha256": HASH,
                            }
                        ],
                    }
                ]
            }
        ],
        "run": "run",
        "commit": "commit",
    }
    assert parse_manifest(facts().manifest.text, "m") == facts().manifest


def changed(change: Callable[[dict[str, object]], object]) -> str:
    found = document()
    change(found)
    return json.dumps(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(publish_all=True), "publish_all: False was expected"),
        (lambda d: d.update(more=1), "document: Additional properties"),
        (lambda d: d.pop("run"), "document: 'run' is a required property"),
        (lambda d: d.update(publishing_groups=[]), "publishing_groups: .* non-empty|too short"),
        (lambda d: d.update(schema="other/1"), "schema: "),
    ],
)
def test_a_wrong_manifest_names_the_key(
    change: Callable[[dict[str, object]], object], message: str
) -> None:
    with pytest.raises(UnusableError, match=message):
        parse_manifest(changed(change), "m.json")


def test_a_file_is_listed_once() -> None:
    text = facts().manifest.text
    files = json.loads(text)
    package = files["publishing_groups"][0]["packages"][0]
    package["files"] *= 2
    with pytest.raises(UnusableError, match="listed more than once"):
        parse_manifest(json.dumps(files), "m.json")


def test_every_attempt_is_a_new_object(tmp_path: Path) -> None:
    paths = [write_manifest(facts().manifest, tmp_path) for _ in range(3)]
    assert [path.name.split("-")[1] for path in paths] == ["0001", "0002", "0003"]
    assert sorted(tmp_path.iterdir()) == paths


# --- the mails' texts -----------------------------------------------------------------------------


def test_the_last_mail_states_each_file() -> None:
    manifest = facts().manifest
    file = manifest.entries[0].file
    mail = gate_mail.finished(manifest, {file: gate.ABSENT}, [file], "a line\n")
    assert mail.subject == "not complete: sync-a 1.0.0"
    assert "0 of 1 files are public" in mail.truth
    assert f"  not public: {file}" in mail.truth
    assert f"Still in staging: {file}" in mail.truth
    assert mail.log.endswith("a line\n")


def test_a_mail_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="MMAEMU_MAIL_SERVER must be HOST:PORT, got 'mail'"):
        gate_mail.load_post(tmp_path, "a@b", "c@d", "sync", {"MMAEMU_MAIL_SERVER": "mail"})
