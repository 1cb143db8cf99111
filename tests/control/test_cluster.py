"""A cluster's controller, and its backup: admissions, evictions, restarts, elections. Polls are by hand."""

import sqlite3
import time
from contextlib import ExitStack, closing

import pytest
from bmv2_process import running_bmv2
from clusters import Controllers, cluster_text, have, job_text
from patience import PATIENCE_S, until
from primary import Primary
from test_controller import stamps

from peelsum.control import ControlError, SwitchError, open_session
from peelsum.control.cluster import JobController, Store
from peelsum.control.cluster.cluster import parse_cluster
from peelsum.control.cluster.store import BackupError, StoredJob, StoreError
from peelsum.control.description import parse_description
from peelsum.control.errors import DescriptionError, NotPrimaryError
from peelsum.control.session import Session
from peelsum.control.tables import read_jobs

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def slots_are_freed_elsewhere(monkeypatch, request):
    """Freeing slots takes most of an admission's time, and is tested elsewhere."""
    if "freed" not in request.fixturenames:
        monkeypatch.setattr("peelsum.control.admission.Placement.free_slots", lambda *_: None)


@pytest.fixture
def told():
    """What controllers told, as (kind, text)."""
    return []


@pytest.fixture
def controllers(tmp_path, switches, told):
    addresses = [switch.address for switch in switches]

    def noted(event):
        return told.append((event.kind, event.text))

    with closing(Controllers(tmp_path, addresses, on_event=noted)) as made:
        yield made


def polled(cluster):
    """Poll until the controller is the primary: switches take a moment to notice a stream's end."""
    until(lambda: cluster.poll() or cluster.is_primary, "did not become the primary")
    return cluster


@pytest.fixture
def primary(controllers, told):
    cluster = polled(controllers.start(address="here:1"))
    told.clear()
    return cluster


def admitted(cluster, switch, *job_ids):
    """Admit jobs to a switch, by default job 3; return description and generation of each by number."""
    texts = {job_id: job_text(job_id, switch.address) for job_id in job_ids or (3,)}
    return {job_id: (text, cluster.admit(text)["generation"]) for job_id, text in texts.items()}


def kinds(told):
    found = [kind for kind, _ in told]
    told.clear()
    return found


def test_a_new_controller_is_the_primary_of_all_switches(controllers, switches, told):
    cluster = polled(controllers.start())
    others = ("backup", "removed")
    assert [kind for kind in kinds(told) if kind not in others] == ["primary", "regained", "regained"]
    assert [switch["state"] for switch in cluster.listed()["switches"]] == ["up", "up"]
    for switch in switches:
        with pytest.raises(NotPrimaryError, match="another controller is the primary"):
            Primary(switch.address)


def test_an_admission_frees_slots_and_a_switch_with_many_jobs_does_so_once(primary, switches, freed):
    for job_id in (3, 4):
        primary.admit(job_text(job_id, switches[0].address))
    switches[0].restart()
    freed.clear()
    primary.poll()
    primary.poll()
    assert len(freed) == 1  # the probe, as the new pipeline's slots are free


def test_jobs_are_admitted_to_their_switches_and_evicted(primary, switches, told):
    texts = {3: job_text(3, switches[0].address), 4: job_text(4, switches[1].address)}
    said = {job_id: primary.admit(text) for job_id, text in texts.items()}
    assert (said[3]["worker_ports"], said[3]["timeout_s"]) == ((4, 5), 30.0)
    jobs = {job_id: (texts[job_id], said[job_id]["generation"]) for job_id in texts}
    assert have(switches, jobs)
    primary.poll()
    assert have(switches, jobs)
    listed = [(job["job_id"], job["state"]) for job in primary.listed()["jobs"]]
    assert listed == [(3, "admitted"), (4, "admitted")]
    assert primary.evict(3) == {"waiting": []}
    del jobs[3]
    assert have(switches, jobs)
    assert kinds(told) == ["admitted", "admitted", "evicted"]
    with pytest.raises(ControlError, match=r"^job: 3: is not admitted; admitted: 4$"):
        primary.evict(3)


def test_generations_go_on_after_an_eviction_and_a_restart_of_the_switch(primary, switches):
    text = job_text(3, switches[0].address)
    first = primary.admit(text)["generation"]
    primary.evict(3)
    switches[0].restart()
    primary.poll()
    primary.poll()
    assert primary.admit(text)["generation"] == (first + 1) % 65536


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('p4runtime = "', 'p4runtime = "x'), "switch.p4runtime: 'x127.* is not a switch of this cluster"),
        (("workers = 2", "wokers = 2"), "a.toml: job.wokers: .*; call it 'workers'"),
        (("pipeline_lanes = 32", "pipeline_lanes = 64"), "pipeline_lanes: 64: the switch runs 32 lanes"),
        (("window = 64", "window = 60000"), "job.window: 60000: at most half"),
        (("[job]", "[job] # \ud800"), r"^a.toml: line 2: '\\ud800': is no Unicode character; remove it$"),
    ],
)
def test_a_job_that_cannot_be_admitted_changes_nothing(primary, switches, change, message):
    jobs = admitted(primary, switches[0])
    text = job_text(3, switches[0].address)
    with pytest.raises(DescriptionError, match=message):
        primary.admit(text.replace(*change), "a.toml")
    assert have(switches, jobs)
    primary.poll()
    assert have(switches, jobs)


def test_a_token_that_cannot_be_stored_changes_nothing(primary, switches):
    text = job_text(3, switches[0].address)
    jobs = {3: (text, primary.admit(text)["generation"])}
    for change in (lambda: primary.admit(text, token="\ud800"), lambda: primary.evict(3, "\ud800")):
        with pytest.raises(ValueError, match=r"^token: is not Unicode text; make one: peelsum certificates"):
            change()
    assert have(switches, jobs)


@pytest.mark.parametrize("job_id", [-1, 0, 256, 1 << 63, 10**30])
def test_an_eviction_of_what_no_job_can_be_called(primary, job_id):
    with pytest.raises(ValueError, match=f"^job_id: {job_id}: is not a job's number; use 1 to 255$"):
        primary.evict(job_id)


def test_a_job_with_a_token_is_changed_with_it_only(primary, switches):
    text = job_text(3, switches[0].address)
    primary.admit(text, token=TOKEN)
    for token in ("", TOKEN + "x"):
        with pytest.raises(ControlError, match="job: 3: was admitted with a token; give --token"):
            primary.admit(text, token=token)
        with pytest.raises(ControlError, match="job: 3: was admitted with a token"):
            primary.evict(3, token)
    primary.admit(text, token=TOKEN)
    primary.evict(3, TOKEN)
    primary.admit(text)


def test_a_restarted_switch_gets_its_jobs_back_in_the_same_generation(primary, switches, told):
    jobs = admitted(primary, switches[0], 3, 4, 5)
    switches[0].stop()
    told.clear()
    primary.poll()
    assert kinds(told) == ["lost"]
    assert primary.listed()["jobs"][0]["state"].startswith("waits: ")
    with pytest.raises(SwitchError, match="try again when it is up"):
        primary.admit(jobs[3][0])
    primary.poll()
    assert kinds(told) == []
    switches[0].start()
    primary.poll()
    assert kinds(told) == ["restored"] * 3 + ["regained"]
    assert have(switches, jobs)


def test_a_job_that_is_evicted_while_its_switch_is_away(primary, switches):
    text = job_text(3, switches[0].address)
    primary.admit(text)
    switches[0].stop()
    primary.poll()
    assert primary.evict(3) == {"waiting": [switches[0].address]}
    switches[0].start()
    primary.poll()
    assert have(switches, {})


def test_a_job_that_moves_to_another_switch_leaves_the_first(primary, switches):
    admitted(primary, switches[0])
    jobs = admitted(primary, switches[1])
    primary.poll()
    assert have(switches, jobs)


def test_what_nobody_admitted_here_is_removed(controllers, switches, told, files):
    with Primary(switches[0].address, patience_s=PATIENCE_S) as other:
        other.load_pipeline(*files)
        other.admit(parse_description(job_text(7, switches[0].address)))
    polled(controllers.start())
    assert have(switches, {})
    assert "removed" in kinds(told)


def test_a_backup_changes_nothing_and_names_the_primary(primary, controllers, switches, told):
    backup = controllers.start(address="there:2")
    for _ in range(4):
        backup.poll()
    assert kinds(told) == ["backup"]
    for ask in (backup.listed, lambda: backup.evict(3), lambda: backup.admit(job_text(3, "x:1"))):
        with pytest.raises(BackupError, match=r"^controller: is a backup; ask the primary, at here:1$"):
            ask()
    primary.admit(job_text(3, switches[0].address))


def test_the_backup_takes_over_from_a_primary_that_resigns_at_once(primary, controllers, switches):
    jobs = admitted(primary, switches[0])
    backup = controllers.start()
    backup.poll()
    primary.close()
    polled(backup)
    assert have(switches, jobs)
    assert [job["job_id"] for job in backup.listed()["jobs"]] == [3]
    backup.evict(3)
    assert have(switches, {})


def crash(cluster):
    """End a controller as SIGKILL does: connections close, nothing else happens."""
    for switch in cluster._switches.values():
        switch.close()


def test_the_backup_takes_over_from_a_primary_that_was_killed(primary, controllers, switches, told):
    jobs = admitted(primary, switches[0])
    backup = controllers.start()
    backup.poll()
    crash(primary)
    told.clear()
    polled(backup)
    assert have(switches, jobs)
    assert kinds(told) == ["primary", "regained", "regained"]  # tables that are right are left alone


def test_a_switch_with_another_controllers_job_is_left_to_it(controllers, switches, told, monkeypatch):
    monkeypatch.setattr("peelsum.control.session._RELEASE_S", 0.1)
    with closing(JobController()) as holder:
        job = parse_description(job_text(3, switches[0].address))
        generation = holder.admit_job(job)["generation"]
        cluster = polled(controllers.start())
        cluster.poll()
        assert any(kind == "lost" and "holds this job at" in text for kind, text in told)
        holder.poll()
        assert holder.generation(3) == generation
    told.clear()
    until(lambda: cluster.poll() or told, "the switch is not its own")
    # Among the jobs that are removed are those of other tests.
    assert set(kinds(told)) == {"removed", "regained"}


def test_a_primary_that_is_gone_for_one_poll_only_is_not_replaced(primary, controllers, switches):
    """As when its connection broke and it bids again."""
    backup = controllers.start()
    backup.poll()
    crash(primary)
    for switch in switches:
        with open_session(switch.address) as observer:
            while observer.has_primary():
                time.sleep(0.01)
    backup.poll()
    assert not backup.is_primary
    primary.poll()
    backup.poll()
    assert not backup.is_primary
    assert primary.is_primary


def test_the_file_refuses_changes_of_an_earlier_epoch(tmp_path):
    with closing(Store(tmp_path / "state")) as store:
        old = store.take_over("one:1", [("switch:1", 1)])
        new = store.take_over("two:2", [("switch:1", 1)])
        job = StoredJob(3, True, 5, "text", "", "")
        for change in (lambda: store.admit(old, job), lambda: store.evict(old, 3), lambda: store.resign(old)):
            with pytest.raises(BackupError, match="ask the primary, at two:2"):
                change()
        assert (store.jobs(), store.leader().address) == ([], "two:2")
        store.admit(new, job)
        assert store.jobs() == [job]
        store.evict(new, 3)
        assert (store.jobs(), store.job(3)) == ([], job._replace(admitted=False))


def test_a_change_that_is_not_committed_does_not_stand_in_the_way_of_the_next(tmp_path):
    """Where a file system has no write-ahead log, a reader is in a commit's way, but in no statement's."""
    path, job = tmp_path / "state", StoredJob(3, True, 5, "text", "", "")
    with closing(Store(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        epoch = store.take_over("one:1", [("switch:1", 1)])
        store._file.execute("PRAGMA journal_mode = DELETE")
        store._file.execute("PRAGMA busy_timeout = 0")
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
        with pytest.raises(StoreError, match=r"state: database is locked; give a file"):
            store.admit(epoch, job)
        reader.execute("ROLLBACK")
        assert store.jobs() == []
        store.admit(epoch, job._replace(generation=6))
        assert store.jobs() == [job._replace(generation=6)]


def test_a_full_disk_is_called_by_its_name(tmp_path):
    job = StoredJob(3, True, 5, "text", "", "")
    with closing(Store(tmp_path / "state")) as store:
        epoch = store.take_over("one:1", [("switch:1", 1)])
        store._file.execute("PRAGMA max_page_count = 8")
        with pytest.raises(StoreError, match=r"state: database or disk is full; give a file"):
            store.admit(epoch, job._replace(description="#" * 100_000))
        store.admit(epoch, job)
        assert store.jobs() == [job]


@pytest.mark.parametrize("known", [True, False])
def test_an_admission_that_is_refused_half_way_changes_no_job(primary, switches, monkeypatch, known):
    jobs = admitted(primary, switches[0]) if known else {}

    def refusing(placement, generation):
        raise SwitchError("switch: refused writing: update 0 (table_entry): no room")

    with monkeypatch.context() as patched:
        patched.setattr("peelsum.control.admission.Placement.open", refusing)
        with pytest.raises(SwitchError, match="no room"):
            primary.admit(job_text(3, switches[0].address, ports=(7, 8)))
    primary.poll()
    assert have(switches, jobs)


def test_a_primary_that_was_stopped_and_goes_on_is_a_backup(primary, controllers, switches, told):
    """It held its streams all the time; the greater election id took its role away."""
    other = controllers.start(address="there:2")
    epoch = other._store.take_over("there:2", list(other._switches))
    other._epoch = epoch
    other.poll()
    text = job_text(3, switches[0].address)
    with pytest.raises((SwitchError, BackupError)):
        primary.admit(text)
    primary.poll()
    assert not primary.is_primary
    jobs = admitted(other, switches[0])
    for _ in range(3):
        primary.poll()
        other.poll()
    assert other.is_primary
    assert have(switches, jobs)


def test_a_controller_with_other_switches_is_not_a_backup(primary, controllers, switches, told):
    backup = controllers.start(addresses=[switches[0].address])
    backup.poll()
    assert told[-1][1].endswith("has other switches in its file, so it will not take over")
    crash(primary)
    for _ in range(5):
        backup.poll()
    assert not backup.is_primary


def test_a_controller_that_starts_before_its_switches_and_has_another_list(primary, controllers, switches):
    primary.close()
    switches[0].stop()
    cluster = controllers.start(addresses=[switches[0].address])
    for _ in range(3):
        cluster.poll()
    assert not cluster.is_primary
    switches[0].start()
    polled(cluster)
    assert [one["p4runtime"] for one in cluster.listed()["switches"]] == [switches[0].address]


@pytest.mark.parametrize("writes", range(1, 4))
def test_an_admission_that_ends_half_way_leaves_nothing(controllers, primary, switches, monkeypatch, writes):
    jobs = admitted(primary, switches[0])
    left = iter(range(writes))

    def write(session, updates, _write=Session.write_raw):
        if next(left, None) is None:
            raise KeyboardInterrupt
        _write(session, updates)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "write_raw", write)
        with pytest.raises(KeyboardInterrupt):
            primary.admit(job_text(4, switches[0].address, ports=(7, 8)))
    crash(primary)
    polled(controllers.start())
    assert have(switches, jobs)


def test_a_file_that_cannot_be_a_state_file(tmp_path):
    path = tmp_path / "state"
    path.write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(StoreError, match=r"controller.state: .*state: file is not a database; give a file"):
        Store(path)
    with pytest.raises(StoreError, match=r"controller.state: .*; give a file that can be read and written"):
        Store(tmp_path / "no" / "state")


@pytest.mark.parametrize("other", [False, True], ids=["removed", "replaced"])
def test_a_state_file_that_is_gone_gets_no_more_changes(tmp_path, other):
    """SQLite goes on with the file that it has opened, and lost what it admitted."""
    path = tmp_path / "state"
    with closing(Store(path)) as store:
        epoch = store.take_over("one:1", [("switch:1", 1)])
        path.unlink()
        if other:
            path.write_bytes(b"another file")

        def admit():
            return store.admit(epoch, StoredJob(3, True, 5, "text", "", ""))

        for use in (store.leader, store.jobs, admit):
            with pytest.raises(
                StoreError, match=r"controller.state: .*: was removed or replaced while in use; start"
            ):
                use()


def test_a_state_file_of_a_later_version(tmp_path):
    path = tmp_path / "state"
    with closing(Store(path)) as store:
        store._file.execute("PRAGMA user_version = 9")
    with pytest.raises(StoreError, match="has version 9, this program writes 2; give another file"):
        Store(path)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("state", "stat", "controller.stat: is not a field of a cluster description; call it 'state'"),
        ("poll_s = 0.05", "poll_s = 0", "controller.poll_s: 0 is out of range; use 0.05 or more"),
        ("[[switches]]", "[[switch]]", "switch: .* call it 'switches'"),
        ("a:1", "a", "switches.0.p4runtime: 'a': give the address as host:port"),
        ("a:1", "b:2", "switches: 'b:2', device_id 1: is listed 2 times; list it once"),
        (
            "= 32",
            "= 33",
            "switches.0.pipeline_lanes: 33: is not compiled; use 32, 64, 128, 256, 512, 1024, 2048",
        ),
    ],
)
def test_errors_of_the_file_name_field_value_and_remedy(right, wrong, message):
    text = cluster_text(["a:1", "b:2"])
    parse_cluster(text)
    assert right in text
    with pytest.raises(DescriptionError, match=f"^c.toml: {message}"):
        parse_cluster(text.replace(right, wrong, 1), "c.toml")


def polled_until_up(cluster):
    """Poll until every switch is up, which loads BMv2's pipeline."""
    until(lambda: all(one["state"] == "up" for one in polled(cluster).listed()["switches"]))
    return cluster


def jobs_on(address):
    """Return a switch's open jobs and their generations, read by a controller that changes nothing."""
    with Session(address, 1, timeout_s=PATIENCE_S) as session:
        return {job.job_id: job.generation for job in read_jobs(session)}


def test_bmv2_is_kept_and_taken_over_too(tmp_path, told):
    with ExitStack() as later:
        with running_bmv2(tmp_path / "first.log") as address:
            noting = Controllers(tmp_path, [address], on_event=lambda event: told.append(event.kind))
            controllers = later.enter_context(closing(noting))
            first = polled_until_up(controllers.start(address="here:1"))
            kept = {job_id: first.admit(job_text(job_id, address))["generation"] for job_id in (3, 4)}
            first.admit(job_text(5, address))
            assert first.evict(5) == {"waiting": []}
            assert jobs_on(address) == kept
            first.close()
            second = polled_until_up(controllers.start(address="here:2"))
            assert jobs_on(address) == kept
            assert "restored" not in told
        with running_bmv2(tmp_path / "second.log", address):
            polled_until_up(second)
            assert told.count("restored") == 2
            assert jobs_on(address) == kept


def test_old_slots_of_an_owned_switch_are_freed_without_an_admission(primary, switches):
    admitted(primary, switches[0])
    register, view = stamps(switches[0].device), primary._owned[switches[0].address, 1]
    register.write(10, old := (-(1 << 29) - 1) % (1 << 32))
    primary.poll()
    assert register.read(10) == old
    view._slots_at = 0.0
    primary.poll()
    assert register.read(10) == 0
