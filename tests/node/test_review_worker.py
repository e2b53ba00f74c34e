"""What a worker must not do to those who come after it: a router that has just started, its store, its requests."""
import fcntl

from conftest import PATIENCE
from test_worker_protocol import Stand


def test_the_last_worker_out_leaves_what_a_starting_router_has_taken(tmp_path):
    """A router holds the name's lock before it adopts the store, long before its control socket listens."""
    with Stand(tmp_path, isa="auto", worker_orphan_grace_s=1) as stand:
        worker = stand.start_worker()
        stand.welcome()
        stand.die()
        with open(tmp_path / f"{stand.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert worker.wait(timeout=20 * PATIENCE) == 0
            assert len(stand.left_behind()) == 3, "the new router's store or sockets are gone"
        assert stand.is_clean()


def test_of_workers_that_leave_together_one_clears_up(tmp_path):
    for _ in range(3):
        with Stand(tmp_path, isa="auto", worker_orphan_grace_s=1) as stand:
            workers = [stand.start_worker(i) for i in range(3)]
            for _ in workers:
                stand.welcome()
            stand.die()
            for worker in workers:
                assert worker.wait(timeout=20 * PATIENCE) == 0
            assert stand.left_behind() == []
            assert not (tmp_path / f"{stand.name}.lock").exists()
