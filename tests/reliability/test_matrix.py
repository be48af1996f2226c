"""Each course of faults: the study goes on as it should, nothing is left behind, no finished trial is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reliability.matrix import COURSES, Course, run_course, table
from tests.reliability.scripted import next_fault

pytestmark = pytest.mark.integration

AT_ONCE = 3  # a course mostly waits; on two cores three take hardly longer than two
DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"

Wrong = Callable[[Course], list[str]]


@pytest.fixture(scope="module")
def wrong(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrong]:
    """What was wrong with a course. Those asked for run side by side, unless pytest's workers do that already."""

    def run(course: Course) -> list[str]:
        return run_course(course, tmp_path_factory.mktemp("course"))

    if "PYTEST_XDIST_WORKER" in os.environ:
        yield run
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = _wanted(request.session)
        started: dict[str, Future[list[str]]] = {c.name: pool.submit(run, c) for c in COURSES if c.name in wanted}
        yield lambda course: started[course.name].result()


def _wanted(session: pytest.Session) -> set[str]:
    items = [item for item in session.items if isinstance(item, pytest.Function) and item.module.__name__ == __name__]
    found = [item.callspec.params["course"] for item in items if hasattr(item, "callspec")]
    return {course.name for course in found if isinstance(course, Course)}


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.name.replace(" ", "_"))
def test_faults_are_survived_and_nothing_is_left_or_lost(course: Course, wrong: Wrong) -> None:
    assert not wrong(course), "\n\n".join(wrong(course))


def test_no_two_cells_are_the_same() -> None:
    cells = [(cell.phase, cell.words) for course in COURSES for cell in course.cells]
    assert len(set(cells)) == len(cells)


def test_a_launch_takes_the_next_fault_and_none_once_all_are_taken(tmp_path: Path) -> None:
    script = tmp_path / "faults.txt"
    script.write_text("a,b\n\nc")
    assert [next_fault(script) for _ in range(5)] == ["a,b", "", "c", "", ""]


def test_the_table_in_the_docs_is_this_one() -> None:
    assert table() in DOCS.read_text(), "run `python -m tests.reliability.matrix` and put what it prints there"
