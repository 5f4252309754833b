"""Device time: what is told, kept, lost and whose it is (M8)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BOOK = "tenants/devices.py"
_TOLD = "tests/tenants/test_devices.py::test_what_is_told_twice_or_late_counts_once[sqlite]"
_DIED = (
    "tests/tenants/test_devices.py"
    "::test_what_died_with_an_executor_is_lost_and_comes_back_with_its_record[sqlite]"
)
_KILLED = (
    "tests/executor/test_device_time.py::test_an_executor_that_is_killed_leaves_its_last_account"
)
_LIVES = (
    "tests/executor/test_device_time.py::test_whatever_happens_the_accounts_come_to_the_wall_clock"
)
_OURS = "tests/gateway/test_device_time.py::test_work_that_a_fault_of_ours_ended_is_no_customers"

MUTANTS = (
    Mutant(
        "late_report_counts_again",
        "M8",
        _BOOK,
        '    newer = report.wall_ns > kept["told_wall_ns"]\n',
        '    newer = report.wall_ns != kept["told_wall_ns"]\n',
        _TOLD,
    ),
    Mutant(
        "what_died_is_still_attributed",
        "M8",
        _BOOK,
        "    busy_ns = attributed_ns - faulted_ns - lost_ns\n",
        "    lost_ns, busy_ns = 0, attributed_ns - faulted_ns\n",
        _DIED,
    ),
    Mutant(
        "lost_is_found_once_for_ever",
        "M8",
        _BOOK,
        "    for kept in conn.execute(ended.with_for_update()).mappings().all():\n",
        "    for kept in ():\n",
        _DIED,
    ),
    Mutant(
        "minute_forgets_what_it_had",
        "M8",
        _BOOK,
        "    values: dict[str, Any] = {name: _M.c[name] + change[name] for name in _TIMES}\n",
        "    values: dict[str, Any] = {name: change[name] for name in _TIMES}\n",
        _TOLD,
    ),
    Mutant(
        "failed_steps_are_nobodys",
        "M8",
        "executor/engine.py",
        "            self._books.totals.failed_steps_ns += now_ns - begin_ns\n",
        "",
        _LIVES,
    ),
    Mutant(
        "last_word_of_an_executor_is_dropped",
        "M8",
        "executor/connection.py",
        "                self._past.append(self._gauges.device)\n",
        "                pass\n",
        _KILLED,
    ),
    Mutant(
        "customers_pay_for_our_faults",
        "M8",
        "gateway/case.py",
        "        if self.at_our_cost() or not self.touched_device():\n",
        "        if not self.touched_device():\n",
        _OURS,
    ),
)
