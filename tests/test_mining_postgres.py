"""Mining an archive on a server gives what it gives of a file with the same rows."""

import importlib.util
from pathlib import Path

import pytest

from archive import Store, mining
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.evaluation import Evaluation, Status


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
DIGESTS = [cases.kernel(i).digest for i in range(6)]


def filled(store):
    """Good, wrong, withdrawn, built, repeated and missing kernels."""
    run = store.start_run("run", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
    run.add(cases.evaluated(0, 0))
    run.add(cases.evaluated(1, 1, speedup=2.0, parents=(DIGESTS[0],), operator="edit", n_calls=2))
    run.add(cases.evaluated(2, 2, status=Status.INCORRECT, parents=(DIGESTS[0],), operator="edit"))
    run.add(cases.evaluated(3, 3, speedup=3.0, parents=(DIGESTS[1], DIGESTS[0]), operator="crossover"))
    run.add(cases.failed(4, parents=(DIGESTS[1],)))
    run.add(cases.duplicate(5, 40, cases.kernel(0), parents=(DIGESTS[0],)))
    run.add_session(DIGESTS[1], cases.session(77, 2.0, purpose="final"))
    run.withdraw(DIGESTS[3], cases.verdict(3, status=Status.INCORRECT))
    run.add(cases.evaluated(6, 4, conclusive=False, parents=(DIGESTS[1],)))
    candidate = cases.evaluated(7, 5)
    object.__setattr__(candidate, "evaluation", Evaluation(cases.verdict(5, status=Status.BUILT), None, 0.1))
    run.add(candidate)
    return store


@pytest.fixture(scope="module")
def stores(postgres, tmp_path_factory):
    with Store.open(postgres.fresh()) as server, Store.open(tmp_path_factory.mktemp("file") / "a.db") as file:
        yield filled(server), filled(file)


@pytest.mark.parametrize("name", mining.TABLES)
def test_every_table_is_the_same(stores, name):
    server, file = (
        [{key: value for key, value in row.items() if key != "created"} for row in mining.table(store, name).rows()]
        for store in stores
    )
    assert server == file
    assert server


def test_every_question_is_answered_alike(stores):
    server, file = stores
    for ask in (mining.moves, mining.elites, mining.environments):
        assert ask(server) == ask(file)
    assert mining.cells(server).elites == mining.cells(file).elites
    assert mining.pareto(server).points == mining.pareto(file).points
    for digest in DIGESTS[:4]:
        assert mining.family(server, digest) == mining.family(file, digest)
        assert mining.show(server, digest) == mining.show(file, digest)
    assert mining.compare(server, *DIGESTS[:2]).places == mining.compare(file, *DIGESTS[:2]).places


def test_a_statement_can_only_read(stores):
    server, _ = stores
    with mining.query(server, "SELECT name, '100%' FROM runs WHERE name <> '?'") as answer:
        assert (answer.columns, list(answer.rows)) == (("name", "?column?"), [("run", "100%")])
    for text in (
        "SELECT 1; COMMIT; DROP TABLE runs",
        "WITH x AS (DELETE FROM runs RETURNING id) SELECT * FROM x",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "DROP TABLE runs",
        "SELECT nope FROM runs",
    ):
        with pytest.raises(ConfigurationError, match="the statement") as caught, mining.query(server, text) as answer:
            list(answer.rows)
        assert "\n" not in str(caught.value)
    with pytest.raises(StorageError, match="took too long"), mining.query(server, "SELECT pg_sleep(9)", timeout_s=0.2):
        pass
    assert server.read("SELECT COUNT(*) FROM runs") == [(1,)]
