"""Tests of the model: it meets the results of queueing theory and the measured throughput, and jobs have one result each.

python3 -m unittest discover -s tests/bench/fleet_simulation
"""

import contextlib
import dataclasses
import io
import math
import pathlib
import random
import re
import unittest
import unittest.mock

import figures
from figures import capacity
from model import NO_COSTS, Costs, Fleet, Rules, agent_duration, agent_mean, percentile, ring_shares, wait_probability

PERFORMANCE = (pathlib.Path(__file__).parents[3] / "docs/performance.md").read_text()


def run(fleet, rate, duration, warm_up=0.0):
    fleet.arrive(rate, warm_up + duration)
    fleet.run_until(warm_up)
    fleet.reset()
    fleet.run_until(warm_up + duration)
    return fleet


class QueueingTheory(unittest.TestCase):
    def assert_near(self, value, expected, tolerance):
        self.assertLess(abs(value / expected - 1), tolerance, f"{value} is not {expected}")

    def test_wait_is_that_of_m_m_c(self):
        for daemons, places, load in [(1, 1, 0.5), (5, 2, 0.8), (20, 4, 0.95)]:
            with self.subTest(daemons=daemons, places=places, load=load):
                count = daemons * places
                fleet = run(Fleet(daemons, places), load * count, 150_000 / (load * count), warm_up=50)
                probability = wait_probability(count, load * count)
                drain_rate = count * (1 - load)
                waits = [wait for wait in fleet.waits if wait > 0]
                self.assert_near(len(waits) / len(fleet.waits), probability, 0.1)
                self.assert_near(sum(fleet.waits) / len(fleet.waits), probability / drain_rate, 0.15)
                self.assert_near(percentile(fleet.waits, 0.99), math.log(probability / 0.01) / drain_rate, 0.15)

    def test_server_is_m_d_1(self):
        costs = dataclasses.replace(NO_COSTS, writes_per_second=1000, submit_writes=1, claim_writes=0, claim_reads=0, end_writes=0)
        fleet = run(Fleet(1, 10_000, costs, duration=lambda draw: 0.0), 800, 120, warm_up=5)
        # Pollaczek and Khinchine.
        expected = 0.001 + 0.8 * 0.001 / (2 * (1 - 0.8))
        self.assert_near(sum(fleet.waits) / len(fleet.waits), expected, 0.05)
        self.assert_near(fleet.server_load(), 0.8, 0.02)

    def test_routed_daemons_are_m_m_1(self):
        fleet = run(Fleet(10, 1, route=lambda draw: draw.randrange(10)), 5, 20_000, warm_up=100)
        self.assert_near(sum(fleet.waits) / len(fleet.waits), 1, 0.1)

    def test_wait_probability(self):
        self.assertAlmostEqual(wait_probability(1, 0.3), 0.3)
        # M/M/2: 2 ρ² / (1 + ρ).
        self.assertAlmostEqual(wait_probability(2, 1.0), 2 * 0.25 / 1.5)


class Measurements(unittest.TestCase):
    def test_costs_are_those_of_the_page(self):
        run_cpu, bare_cpu = re.search(r"recycled sandbox costs ([0-9.]+) ms of CPU, and a bare process costs ([0-9.]+) ms", " ".join(PERFORMANCE.split())).groups()
        self.assertEqual(Costs().run_cpu, float(run_cpu) / 1000)

        measured = re.search(r"\| `jig run`, sandboxed \| ([0-9,]+) \| ([0-9.]+) × \|", PERFORMANCE)
        rates = []
        for cpu in (run_cpu, bare_cpu):
            costs = dataclasses.replace(NO_COSTS, run_cpu=float(cpu) / 1000)
            fleet = run(Fleet(1, 8, costs, duration=lambda draw: 0.0), 4000, 5, warm_up=1)
            rates.append(fleet.begun / 5)
        self.assertLess(abs(rates[0] / rates[1] / float(measured[2]) - 1), 0.05, rates)
        # The page has throughput and CPU time of different hours. The speed of the machine varies by a quarter.
        self.assertLess(abs(rates[0] / float(measured[1].replace(",", "")) - 1), 0.3, rates)

    def test_durations_are_those_of_agents(self):
        draw = random.Random(1)
        durations = [agent_duration(draw) for _ in range(200_000)]
        for share, expected in [(0.5, 0.08), (0.9, 5.9), (0.99, 230)]:
            self.assertLess(abs(percentile(durations, share) / expected - 1), 0.1)
        self.assertLess(abs(sum(durations) / len(durations) / agent_mean() - 1), 0.05)

    def test_steady_state_is_there_at_once(self):
        fleet = Fleet(100, 4, duration=agent_duration)
        fleet.fill(0.7)
        rate = 0.7 * 400 / agent_mean()
        run(fleet, rate, 1500)
        running = sum(daemon.running for daemon in fleet.daemons) / 400
        self.assertLess(abs(running / 0.7 - 1), 0.2)


class Tables(unittest.TestCase):
    def test_capacity_is_the_throughput_of_a_full_server(self):
        limit = capacity(Costs(), 0.01)
        fleet = run(Fleet(100, 4, Costs(), duration=lambda draw: 0.01), 1.2 * limit, 5, warm_up=1)
        # Submissions come first in the order of the server, and ends last.
        self.assertLess(abs(fleet.server_load() - 1), 0.01)
        self.assertLess(abs(fleet.ended / 5 / limit - 1), 0.2)

    def test_tables_are_printed(self):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), unittest.mock.patch("sys.argv", ["figures.py", "server", "prefetch", "--jobs", "500"]):
            figures.main()
        self.assertEqual(output.getvalue().count("\n| "), 2 + 5 + 4, output.getvalue())


class Failures(unittest.TestCase):
    """The model asserts that no job has two results. Here, each has one."""

    def assert_all_ended(self, fleet):
        fleet.run_until(fleet.now + 5000)
        self.assertEqual(fleet.ended, fleet.submitted)

    def test_deaths(self):
        for retries, restart in [(0, 5), (0.5, 5), (1, 5), (0.5, 200), (1, 200)]:
            with self.subTest(retries=retries, restart=restart):
                fleet = Fleet(10, 4, Costs(), Rules(retry_if_lost=retries), duration=lambda draw: draw.expovariate(1 / 8))
                fleet.arrive(2, 600)
                fleet.kill_some(0.05, restart, 600)
                fleet.run_until(600)
                self.assert_all_ended(fleet)
                self.assertGreater(fleet.deaths, 5)
                self.assertEqual(fleet.lost == 0, retries == 1)
                self.assertEqual(fleet.judged_wrongly, 0)

    def test_restarted_daemon_gives_back_its_claims(self):
        medians = []
        for recovers in (True, False):
            fleet = Fleet(50, 4, Costs(), Rules(recovers_claims=recovers), duration=lambda draw: draw.expovariate(1 / 8))
            fleet.arrive(10, 3000)
            fleet.kill_some(0.1, 5, 2000)
            fleet.run_until(3000)
            medians.append(percentile(fleet.restarts, 0.5))
        # One ack wait, and many deliveries to daemons that hear the owner.
        self.assertTrue(20 <= medians[0] <= 30 and medians[1] > 60, medians)

    def test_daemon_that_never_returns(self):
        fleet = Fleet(3, 2, Costs(), duration=lambda draw: 30.0)
        for _ in range(6):
            fleet.submit()
        fleet.at(10, fleet.kill, fleet.daemons[0], math.inf)
        fleet.run_until(10)
        self.assert_all_ended(fleet)
        # Heartbeats expire 40 to 60 s after the death, and deliveries try again each 15 s.
        self.assertEqual(len(fleet.restarts), 2)
        self.assertTrue(all(40 <= restart < 90 for restart in fleet.restarts), fleet.restarts)

    def test_outages(self):
        for judges_late in (True, False):
            for duration in (10, 30, 120):
                with self.subTest(judges_late=judges_late, duration=duration):
                    fleet = Fleet(50, 4, Costs(), Rules(judges_late=judges_late), duration=lambda draw: draw.expovariate(1 / 60))
                    fleet.arrive(2, 600)
                    fleet.at(300, fleet.stop_server, duration)
                    fleet.run_until(600)
                    self.assert_all_ended(fleet)
                    self.assertEqual(fleet.lost, 0)
                    self.assertEqual(fleet.judged_wrongly == 0, judges_late or duration < 60)

    def test_partitions(self):
        for duration, is_judged in ((20, False), (300, True)):
            with self.subTest(duration=duration):
                fleet = Fleet(20, 4, Costs(), duration=lambda draw: draw.expovariate(1 / 60))
                fleet.arrive(0.8, 900)
                fleet.at(300, lambda: fleet.partition(fleet.daemons[:10], duration))
                fleet.run_until(900)
                self.assert_all_ended(fleet)
                self.assertEqual(fleet.judged_wrongly > 0, is_judged)
                self.assertEqual(fleet.wasted > 0, is_judged)


class Routes(unittest.TestCase):
    def test_ring(self):
        shares = ring_shares(10, 400)
        self.assertAlmostEqual(sum(shares), 1)
        self.assertLess(max(shares), 0.13)

    def test_prefetched_messages_wait_behind_commands(self):
        waits = []
        for prefetch in (0, 8):
            fleet = Fleet(10, 2, rules=Rules(prefetch=prefetch))
            run(fleet, 16, 3000, warm_up=50)
            waits.append(percentile(fleet.waits, 0.99))
        self.assertGreater(waits[1], 1.5 * waits[0])


if __name__ == "__main__":
    unittest.main()
